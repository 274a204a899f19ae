"""The table of differences is true of the local server, entry by entry."""

import httpx
import pytest

from tests.contract.conftest import differences

TABLE = {entry["check"]: entry for entry in differences()}


def refused(reply: httpx.Response, status: int, message: str) -> bool:
    return reply.status_code == status and list(reply.json()) == ["error"] and message in reply.json()["error"]


def error_text(client, target):
    reply = client.post("/v3/chat/completions", json=target.body(messages=[]))
    return reply.json() == {"error": "Messages array cannot be empty"}


def unsupported(client, target):
    wanted = {"tools": [{}], "response_format": {"type": "json_object"}, "logprobs": True, "echo": True}
    wanted |= {"n": 2, "best_of": 2}
    return all(
        refused(client.post("/v3/chat/completions", json=target.body(**{key: value})), 400, key)
        for key, value in wanted.items()
    )


def other_endpoints(client, target):
    kinds = ["embeddings", "rerank", "images/generations", "audio/speech", "responses", "tokenize"]
    return all(refused(client.post(f"/v3/{kind}", json={}), 404, "Invalid request URL") for kind in kinds)


def infer(client, target):
    paths = [f"/v2/models/{target.model}/infer", f"/v1/models/{target.model}:predict"]
    return all(refused(client.post(path, json={}), 404, "Invalid request URL") for path in paths)


def unknown_address(client, target):
    return refused(client.get("/nowhere"), 404, "Invalid request URL")


def content_type(client, target):
    reply = client.post("/v3/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"})
    return refused(reply, 415, "Content-Type must be application/json")


def queue(client, target):
    from notebooks.deepseek_serving.server.parsing import Limits

    return Limits().waiting < 1000 and Limits().retry_after_s >= 1  # what happens then: test_faults.py


def size(client, target):
    large = client.post("/v3/chat/completions", json=target.body(user="x" * 2**20))
    value = []
    for _ in range(20):
        value = [value]
    deep = client.post("/v3/chat/completions", json=target.body(user=value))
    return refused(large, 413, "larger than") and refused(deep, 400, "deeper than 16 levels")


def host(client, target):
    return refused(client.get("/v3/models", headers={"Host": "example.org"}), 403, "127.0.0.1")


def server_name(client, target):
    return client.get("/v2").json()["name"] == "OpenVINO GenAI, local server"


def metadata(client, target):
    found = client.get(f"/v2/models/{target.model}").json()
    return found["inputs"] == found["outputs"] == []


def metrics(client, target):
    text = client.get("/metrics").text
    return "ovms_current_graphs{" in text and "llm_generated_tokens_total{" in text


def batch_size(client, target):
    from notebooks.deepseek_serving.server.repository import Options

    names = Options.__dataclass_fields__
    return "max_num_seqs" in names and "dynamic_split_fuse" not in names  # that the rest waits: test_engine.py


def one_model(client, target):
    return len(client.get("/v3/models").json()["data"]) == 1


def model_name(client, target):
    return client.get("/v3/models").json()["data"][0]["name"] == target.model


@pytest.mark.parametrize("check", TABLE)
def test_the_local_server_differs_as_the_table_says(client, target, check):
    if target.kind != "local":
        pytest.skip("This is about the local server.")
    assert globals()[check](client, target) is True


def test_the_table_is_complete():
    assert len(TABLE) == len(differences()) > 10
    for entry in TABLE.values():
        assert set(entry) == {"what", "ovms", "local", "basis", "check"}
        assert entry["basis"] in ("source", "untried") and all(entry.values())
