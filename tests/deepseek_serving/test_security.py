"""Who may ask: loopback by default, elsewhere only with a key; nothing in a request leads to a file."""

import asyncio
import hmac

import httpx
import pytest

from notebooks.deepseek_serving.server import process
from tests.deepseek_serving.fakes import http, live
from utils.serving import guard

KEY = "0123456789abcdef-key"
BODY = {"model": "toy", "prompt": "abc", "max_tokens": 3}
PATHS = ["/v1/config", "/v3/models", "/v2", "/v2/models/toy", "/metrics"]


@pytest.fixture
def locked(toy):
    with live(toy, host="0.0.0.0", api_key=KEY) as running:  # it still listens on loopback
        yield running


def test_nothing_but_health_is_answered_without_the_key(locked):
    wrong = ["", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", KEY, f"bearer {KEY}", "Bearer ключ"]
    with httpx.Client(base_url=locked.url) as client:
        for header in wrong:
            headers = {"Authorization": header.encode()} if header else {}
            assert client.post("/v3/completions", json=BODY, headers=headers).status_code == 401
            assert client.post("/v1/config/reload", headers=headers).status_code == 401
            for path in PATHS:
                reply = client.get(path, headers=headers)
                assert reply.status_code == 401 and reply.json() == {"error": "The API key is missing or wrong."}
        assert locked.pipeline.handles == []
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert client.get(path).status_code == 200


def test_with_the_key_everything_is_answered(locked):
    with httpx.Client(base_url=locked.url, headers={"Authorization": f"Bearer {KEY}"}) as client:
        assert client.post("/v3/completions", json=BODY).json()["choices"][0]["text"] == "abc"
        assert [client.get(path).status_code for path in PATHS] == [200] * len(PATHS)


def test_the_key_is_compared_in_constant_time(locked, monkeypatch):
    compared, real = [], hmac.compare_digest

    def compare(a, b):
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(guard.hmac, "compare_digest", compare)
    http.get(f"{locked.url}/v1/config", headers={"Authorization": "Bearer wrong"})
    assert compared == [(b"Bearer wrong", f"Bearer {KEY}".encode())]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.example.org"])
def test_an_address_others_can_reach_wants_a_key(host, toy, capsys):
    with pytest.raises(ValueError, match="can be reached by others: give an API key"), process.serve(toy, host=host):
        pass
    assert process.main([str(toy), "--host", host, "--port", "0"]) == 1
    assert "can be reached by others" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["", "short", "schlüssel-schlüssel-1", "tab\tand sixteen characters"])
def test_a_key_that_is_no_key_is_refused(key, toy):
    with pytest.raises(ValueError, match="must have 16 printable ASCII"), process.serve(toy, api_key=key):
        pass


def test_loopback_is_known_by_its_number():
    assert [host for host in ["127.0.0.1", "127.1.2.3", "::1", "localhost"] if not process.is_loopback(host)] == []
    assert not any(map(process.is_loopback, ["0.0.0.0", "10.0.0.1", "", "localhost.example.org"]))


@pytest.mark.parametrize("host", ["evil.example.org", "evil.example.org:80", "10.0.0.1", ""])
def test_a_page_with_a_name_of_its_own_cannot_reach_the_loopback_server(shared, host):
    reply = http.get(f"{shared.url}/v3/models", headers={"Host": host})
    assert reply.status_code == 403 and "addressed to 127.0.0.1 or localhost" in reply.json()["error"]
    for fine in ("localhost", "localhost:99", "127.0.0.1:99", "[::1]:99"):
        assert http.get(f"{shared.url}/v3/models", headers={"Host": fine}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_form_of_a_web_page_is_refused(app, kind):
    reply = http.post(f"{app.url}/v3/completions", content=b"{}", headers={"Content-Type": kind})
    assert reply.status_code == 415 and app.pipeline.handles == []


def test_no_path_of_a_request_reaches_the_file_system(app, monkeypatch):
    import builtins
    import io
    import os
    import pathlib

    async def names() -> list[int]:
        paths = ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "toy/../../x", "%00", "C:\\boot.ini"]
        transport = httpx.ASGITransport(app.guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            found = [(await client.get(f"/v2/models/{path}")).status_code for path in paths]
            found += [(await client.get(f"/{path}")).status_code for path in paths]
            for path in paths:
                found.append((await client.post("/v3/completions", json=BODY | {"model": path})).status_code)
                found.append((await client.post("/v3/completions", json=BODY | {"lora": path})).status_code)
        return found

    asyncio.run(names())  # imports and code pages are loaded now
    opened = []

    def watch(module, name):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: (opened.append((name, a)), real(*a, **k))[1])

    for module, name in [(builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "scandir")]:
        watch(module, name)
    monkeypatch.setattr(pathlib.Path, "open", lambda *a, **k: opened.append(("Path.open", a)))
    statuses = asyncio.run(names())
    monkeypatch.undo()
    assert opened == []
    assert set(statuses[:12]) == {404} and statuses[12::2] == [404] * 6 and statuses[13::2] == [200] * 6


def test_no_documentation_pages_are_served(shared):
    statuses = {http.get(f"{shared.url}{path}").status_code for path in ("/docs", "/redoc", "/openapi.json")}
    assert statuses == {404}


@pytest.mark.parametrize("origin", ["https://evil.example.org", "null", "http://127.0.0.1.example.org", "http://[bad"])
def test_a_page_of_another_origin_is_refused(shared, origin):
    reply = http.post(f"{shared.url}/v3/completions", json=BODY, headers={"Origin": origin})
    assert reply.status_code == 403 and "no requests of web pages" in reply.json()["error"]
    assert http.get(f"{shared.url}/v3/models", headers={"Origin": "http://localhost:7860"}).status_code == 200
