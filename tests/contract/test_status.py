"""What the server says of itself: configuration, models, KServe v2 health and metadata, metrics."""

import re

import pytest


def test_the_configuration_names_the_model_as_available(client, target):
    reply = client.get("/v1/config")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("application/json")
    status = reply.json()[target.model]["model_version_status"]
    assert status == [{"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": "OK"}}]


@pytest.mark.parametrize("version", ["v1", "v3"])
def test_the_models_are_listed(client, target, version):
    reply = client.get(f"/{version}/models")
    assert reply.status_code == 200 and reply.json()["object"] == "list"
    model = next(each for each in reply.json()["data"] if each["id"] == target.model)
    assert model["object"] == "model" and isinstance(model["created"], int) and isinstance(model["owned_by"], str)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/{model}/ready"])
def test_health_is_a_status_without_a_body(client, target, path):
    reply = client.get(path.format(model=target.model))
    assert (reply.status_code, reply.content) == (200, b"")


def test_the_server_tells_its_name_and_version(client):
    reply = client.get("/v2")
    assert reply.status_code == 200 and reply.json()["name"] and re.match(r"\d{4}\.\d", reply.json()["version"])


def test_the_model_tells_its_name_and_platform(client, target):
    reply = client.get(f"/v2/models/{target.model}")
    assert reply.status_code == 200
    assert reply.json()["name"] == target.model and reply.json()["platform"] == "OpenVINO"
    assert isinstance(reply.json()["inputs"], list) and isinstance(reply.json()["outputs"], list)


@pytest.mark.parametrize("path", ["/v2/models/nobody", "/v2/models/nobody/ready"])
def test_an_unknown_model_is_not_found(client, path):
    reply = client.get(path)
    assert reply.status_code == 404 and set(reply.json()) == {"error"}


def test_reload_without_a_change_needs_nothing(client, target):
    reply = client.post("/v1/config/reload")
    assert reply.status_code == 200
    assert reply.json()[target.model]["model_version_status"][0]["state"] == "AVAILABLE"


def test_metrics_are_in_prometheus_text_format(client, target):
    reply = client.get("/metrics")
    if reply.status_code == 404 and target.kind == "ovms":
        pytest.skip("This Model Server was started without metrics: --metrics_enable brings them.")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/plain")
    lines = [line for line in reply.text.splitlines() if line]
    sample = re.compile(r'[a-zA-Z_:][\w:]*(\{\w+="[^"]*"(,\w+="[^"]*")*\})? -?[\d.eE+-]+|.* (NaN|\+Inf)')
    assert all(line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line) for line in lines)
    assert any(line.startswith(f'ovms_current_graphs{{name="{target.model}"') for line in lines)
