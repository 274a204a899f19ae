"""Faults between clients and server: each is reported by a message and affects no other client."""

import asyncio
import json
import socket
import time

import httpx
import pytest

from tests.deepseek_serving.fakes import http, live, wait_for

LONG = {"model": "toy", "prompt": "abcdefgh", "max_tokens": 400}
JSON = {"Content-Type": "application/json"}
HEAD = b"POST /v3/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def slow(app) -> None:
    """Answers of 400 tokens that take 2 seconds or more."""
    app.pipeline.answer = lambda prompt: prompt * 100
    app.pipeline.pause = 0.005


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_ends_its_generation_and_no_other(app, stream):
    slow(app)
    with (
        httpx.Client() as stays,
        stays.stream("POST", f"{app.url}/v3/completions", json=LONG | {"stream": True}) as kept,
    ):
        pieces = kept.iter_bytes()
        next(pieces)
        leaving = socket.create_connection(("127.0.0.1", int(app.url.rsplit(":", 1)[1])))
        body = json.dumps(LONG | {"stream": stream}).encode()
        leaving.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert wait_for(lambda: len(app.pipeline.handles) == 2)
        leaving.close()
        assert wait_for(lambda: app.pipeline.handles[1].status == "CANCEL", seconds=1.5)
        assert len(app.pipeline.handles[1].left) > 100 and app.pipeline.handles[0].status == "RUNNING"
        app.pipeline.pause = 0
        assert b"".join(pieces).endswith(b"data: [DONE]\n\n")
    assert wait_for(lambda: app.guard.in_flight == 0) and (app.engine.aborted, app.engine.finished) == (1, 1)


def test_a_client_that_stops_reading_and_leaves_ends_its_generation(app):
    app.pipeline.answer = lambda prompt: "x" * 399
    app.pipeline.pause = 0.002
    leaving = socket.socket()
    leaving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    leaving.connect(("127.0.0.1", int(app.url.rsplit(":", 1)[1])))
    body = json.dumps(LONG | {"stream": True}).encode()
    leaving.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert wait_for(lambda: len(app.pipeline.handles) == 1)
    leaving.close()
    assert wait_for(lambda: app.guard.in_flight == 0)
    assert wait_for(lambda: app.pipeline.handles[0].status != "RUNNING")  # the engine cancels before its next step
    assert app.pipeline.handles[0].status == "CANCEL"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 412, "Cannot parse JSON body"),
        (b"{", 412, "Cannot parse JSON body"),
        (b"\xff\xfe{}", 412, "Cannot parse JSON body"),
        (b"null", 412, "JSON body must be an object"),
        (b"[]", 412, "JSON body must be an object"),
        (b'{"a":' + b"[" * 16 + b"]" * 16 + b"}", 400, "nested deeper than 16 levels"),
        (b"[" * 500_000, 400, "nested deeper than 16 levels"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400, "nested deeper than 16 levels"),
        (b'{"a": "' + b"x" * 2**20 + b'"}', 413, "larger than 1048576 bytes"),
    ],
)
def test_a_body_that_will_not_do_is_refused_and_the_server_lives(shared, body, status, message):
    reply = http.post(f"{shared.url}/v3/chat/completions", content=body, headers=JSON)
    assert reply.status_code == status and message in reply.json()["error"]
    assert http.post(f"{shared.url}/v3/completions", json=LONG).status_code == 200


def test_a_body_of_unknown_length_is_refused_when_it_grows_too_large(shared):
    def endless():
        for _ in range(40):
            yield b" " * 2**16

    reply = http.post(f"{shared.url}/v3/completions", content=endless(), headers=JSON)
    assert reply.status_code == 413


def test_who_is_sent_away_while_sending_a_large_body_sees_why(app):
    app.guard.max_concurrent = 0
    body = json.dumps(LONG | {"prompt": "x" * 900_000}).encode()
    reply = http.post(f"{app.url}/v3/completions", content=body, headers=JSON)
    assert reply.status_code == 503 and reply.headers["retry-after"] == "1"


def test_a_body_that_never_comes_is_given_up(toy):
    with live(toy, upload_s=0.1) as app:
        with socket.create_connection(("127.0.0.1", int(app.url.rsplit(":", 1)[1]))) as sender:
            sender.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
            sender.settimeout(10)
            assert sender.recv(4096).startswith(b"HTTP/1.1 408 ")
        assert wait_for(lambda: app.guard.in_flight == 0)


def test_numbers_that_json_does_not_know_are_refused(shared):
    body = json.dumps(LONG | {"temperature": float("nan")})
    reply = http.post(f"{shared.url}/v3/completions", content=body, headers=JSON)
    assert reply.status_code == 400 and reply.json() == {"error": "temperature out of range(0.0, 2.0)"}


def test_beyond_the_queue_the_answer_is_503_with_retry_after(app):
    app.pipeline.hold.clear()  # room for 2 + 2

    async def everybody():
        async with httpx.AsyncClient(base_url=app.url, timeout=20) as client:
            requests = [
                asyncio.create_task(client.post("/v3/completions", json=LONG | {"max_tokens": 5})) for _ in range(7)
            ]
            done, _ = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
            while sum(task.done() for task in requests) < 3:
                await asyncio.sleep(0.01)
            app.pipeline.hold.set()
            return await asyncio.gather(*requests)

    replies = asyncio.run(everybody())
    refused = [reply for reply in replies if reply.status_code == 503]
    assert len(refused) == 3 and len(replies) - len(refused) == 4
    assert {reply.headers["retry-after"] for reply in refused} == {"1"}
    assert refused[0].json() == {"error": "Too many requests are waiting; try again."}
    assert {reply.json()["choices"][0]["text"] for reply in replies if reply.status_code == 200} == {"abcde"}
    assert app.guard.refused == 3 and app.pipeline.most_at_once == 2


def test_a_thousand_clients_at_once_are_answered_or_sent_away(toy):
    from utils.serving.process import allow_many_connections

    allow_many_connections()
    body = json.dumps({"model": "toy", "prompt": "abcd", "max_tokens": 1}).encode()
    head = (
        b"POST /v3/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def client(port: int, start: asyncio.Event) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await start.wait()  # all of them are connected
        writer.write(request)
        reply = await reader.read()
        writer.close()
        return reply

    async def everybody(port: int) -> list[bytes]:
        start = asyncio.Event()
        clients = [asyncio.create_task(client(port, start)) for _ in range(1000)]
        await asyncio.sleep(0)
        start.set()
        return await asyncio.wait_for(asyncio.gather(*clients), 60)

    with live(toy, waiting=30) as app:
        app.pipeline.pause = 0.002
        replies = asyncio.run(everybody(int(app.url.rsplit(":", 1)[1])))
        answered = [reply for reply in replies if reply.startswith(b"HTTP/1.1 200 ") and b'"text":"a"' in reply]
        away = [reply for reply in replies if reply.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in reply.lower()]
        assert len(answered) + len(away) == 1000 and len(answered) >= 32 and len(away) > 0
        assert wait_for(lambda: app.guard.in_flight == 0)
        assert http.get(f"{app.url}/v2/health/ready").status_code == 200


def test_a_failed_engine_turns_health_red_and_nobody_hangs(app):
    slow(app)
    with httpx.Client(base_url=app.url) as client:
        assert client.get("/v2/health/ready").status_code == 200
        with client.stream("POST", "/v3/completions", json=LONG | {"stream": True}) as stream:
            pieces = stream.iter_bytes()
            next(pieces)
            app.pipeline.fail = RuntimeError("the device was removed")
            last = b"".join(pieces).split(b"\n\n")[-2]
        assert json.loads(last.removeprefix(b"data: ")) == {"error": "The engine has failed: the device was removed"}
        for path in ("/v2/health/ready", "/v2/models/toy/ready"):
            assert client.get(path).status_code == 503
        assert client.get("/v2/health/live").status_code == 200  # the process is there
        assert client.get("/v1/config").json()["toy"]["model_version_status"][0]["state"] == "END"
        assert client.get("/v3/models").json()["data"] == []
        reply = client.post("/v3/completions", json=LONG)
        assert reply.status_code == 503 and "the device was removed" in reply.json()["error"]


def test_a_failure_before_the_first_token_has_a_status_of_its_own(app):
    app.pipeline.fail = RuntimeError("no memory")
    for stream in (True, False):
        reply = http.post(f"{app.url}/v3/completions", json=LONG | {"stream": stream})
        assert reply.status_code in (500, 503) and "no memory" in reply.json()["error"]


def test_health_is_not_ready_while_the_model_loads(toy):
    from types import SimpleNamespace

    from notebooks.deepseek_serving.server import service
    from notebooks.deepseek_serving.server.api import create_app

    loading = service.Service(toy)  # its engine was not started
    app = create_app(loading)

    async def get(path: str):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return await client.get(path)

    assert asyncio.run(get("/v2/health/ready")).status_code == 503
    assert asyncio.run(get("/v2/health/live")).status_code == 200
    status = asyncio.run(get("/v1/config")).json()["toy"]["model_version_status"][0]
    assert SimpleNamespace(**status).state == "LOADING"


def test_requests_in_a_row_on_one_connection(shared):
    with httpx.Client(base_url=shared.url) as client:
        started = time.monotonic()
        texts = [client.post("/v3/completions", json=LONG | {"max_tokens": n}).json() for n in (1, 2, 3)]
        assert [text["choices"][0]["text"] for text in texts] == ["a", "ab", "abc"]
        assert time.monotonic() - started < 30
