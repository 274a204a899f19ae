"""The client against scripted servers: what it sends, reads and reports, and what it says when something fails."""

import ast
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from notebooks.deepseek_serving import pipeline
from notebooks.deepseek_serving.pipeline import Client, Delta, ServerError
from tests.deepseek_serving.scripted import Scripted, event

ROLE = event({"role": "assistant", "content": None})
USAGE = event(usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})
DONE = b"data: [DONE]\n\n"


@contextmanager
def client_of(answer, **options):
    with Scripted(answer) as server, Client(server.url, **options) as client:
        yield client, server


def streams(*pieces, **options):
    return lambda handler, body: handler.stream(*pieces, **options)


def replies(status, body, **headers):
    return lambda handler, body_, body=body: handler.reply(status, body, **headers)


def test_chat_sends_what_was_asked_and_reads_the_reply():
    message = {"role": "assistant", "content": "Paris."}
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    reply = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    with client_of(replies(200, reply), api_key="s3cret") as (client, server):
        got = client.chat("Capital of France?", max_tokens=9, temperature=0)
    assert (got.answer, got.reasoning, got.finish_reason) == ("Paris.", "", "stop")
    assert (got.prompt_tokens, got.completion_tokens) == (5, 2)
    assert got.tokens_per_second == pytest.approx(2 / got.seconds)
    (listed, _, _), (path, headers, body) = server.requests
    assert (listed, path) == ("/v3/models", "/v3/chat/completions")
    assert headers["Authorization"] == "Bearer s3cret"
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Capital of France?"}],
        "max_tokens": 9,
        "temperature": 0,
    }


def test_messages_model_and_another_path_are_kept():
    reply = {"choices": [{"message": {"content": "x"}}]}
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    with Scripted(replies(200, reply)) as server, Client(server.url + "/v1/", model="mine") as client:
        assert client.chat(messages).tokens_per_second is None
    ((path, headers, body),) = server.requests
    assert path == "/v1/chat/completions" and "Authorization" not in headers
    assert body == {"model": "mine", "messages": messages}


def test_a_whole_reply_is_split():
    reply = {"choices": [{"message": {"content": "Hm.\n</think>\n\nYes."}}]}
    with client_of(replies(200, reply), thinks=True) as (client, _):
        assert client.chat("?").reasoning == "Hm."
        assert client.chat("?").answer == "Yes."


@pytest.mark.parametrize("thinks", [True, False])
def test_thoughts_that_the_server_has_split_stay_as_they_are(thinks):
    reply = {"choices": [{"message": {"reasoning_content": "Hm.", "content": "Yes."}}]}
    with client_of(replies(200, reply), thinks=thinks) as (client, _):
        assert (client.chat("?").reasoning, client.chat("?").answer) == ("Hm.", "Yes.")
    pieces = [event({"reasoning_content": "H"}), event({"reasoning_content": "m."}), event({"content": "Yes."}, "stop")]
    with client_of(streams(ROLE, *pieces, DONE), thinks=thinks) as (client, _):
        assert list(client.stream("?")) == [("H", ""), ("m.", ""), ("", "Yes.")]


def test_a_stream_gives_deltas_usage_and_speed():
    pieces = [ROLE, event({"content": "<think>a"}), event({"content": "</think>b"}), event({"content": "c"}, "stop")]
    with client_of(streams(*pieces, USAGE, DONE)) as (client, server):
        stream = client.stream("?", max_tokens=3)
        assert list(stream) == [Delta("a", ""), Delta("", "b"), Delta("", "c")]
    reply = stream.reply
    assert (reply.reasoning, reply.answer, reply.finish_reason) == ("a", "bc", "stop")
    assert (reply.prompt_tokens, reply.completion_tokens) == (7, 3)
    assert 0 < reply.first_token_s <= reply.seconds
    assert reply.tokens_per_second == pytest.approx(2 / (reply.seconds - reply.first_token_s))
    body = server.requests[-1][2]
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True} and body["max_tokens"] == 3


def test_events_are_read_however_the_bytes_are_cut():
    text = "naïve 你好 😀 \u2028 \x85 end"
    body = ROLE + event({"content": text}, "stop") + b": a comment\n\n" + USAGE + DONE
    for size in (1, 2, 3, 7, len(body)):
        pieces = [body[i : i + size] for i in range(0, len(body), size)]
        with client_of(streams(*pieces)) as (client, _):
            assert "".join(delta.answer for delta in client.stream("?")) == text


def test_a_stream_without_done_is_whole_if_it_said_why_it_ended():
    with client_of(streams(ROLE, event({"content": "a"}, "stop"))) as (client, _):
        assert list(client.stream("?")) == [("", "a")]


@pytest.mark.parametrize("whole", [True, False], ids=["clean end", "cut connection"])
def test_a_server_that_dies_in_the_middle_is_an_error(whole):
    with client_of(streams(ROLE, event({"content": "The capital"}), whole=whole)) as (client, _):
        stream = client.stream("?")
        assert next(stream) == ("", "The capital")
        with pytest.raises(ServerError, match="went away in the middle of the answer, after 11 characters"):
            next(stream)
        assert stream.reply.answer == "The capital"


def test_an_error_within_a_stream_is_an_error():
    with client_of(streams(ROLE, b'data: {"error": "out of cache"}\n\n')) as (client, _):
        with pytest.raises(ServerError, match="broke the answer off: out of cache"):
            list(client.stream("?"))


def test_nobody_listening_is_an_error():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(ServerError, match="No server answers at .* Start it, or correct the address"):
            client.chat("?")


def test_a_silent_server_is_an_error():
    def silent(handler, body):
        handler.stream(ROLE, event({"content": "a"}), whole=False)
        handler.wait_for_hang_up()

    with client_of(silent, timeout=0.2) as (client, server):
        stream = client.stream("?")
        assert next(stream) == ("", "a")
        with pytest.raises(ServerError, match="said nothing for too long"):
            next(stream)
        assert server.hung_up.wait(5)


@pytest.mark.parametrize(
    ("status", "body", "headers", "message", "retry_after"),
    [
        (503, {"error": "queue is full"}, {"Retry_After": "3"}, "busy: queue is full. Try again in 3 seconds", 3),
        (503, "", {}, "busy: no more requests now. Try again later", None),
        (404, {"error": "no such model"}, {}, r"refused the request \(404\): no such model", None),
        (400, {"error": {"message": "max_tokens is 0"}}, {}, r"refused the request \(400\): max_tokens is 0", None),
        (422, {"detail": "messages missing"}, {}, r"refused the request \(422\): messages missing", None),
        (413, "too large", {}, r"refused the request \(413\): too large", None),
        (401, {"error": "no key"}, {}, r"wants another API key \(401\): no key", None),
        (500, "", {}, r"failed \(500\): without a reason", None),
    ],
)
@pytest.mark.parametrize("how", ["chat", "stream"])
def test_a_refusal_is_an_error(how, status, body, headers, message, retry_after):
    with client_of(replies(status, body, **headers)) as (client, _):
        with pytest.raises(ServerError, match=message) as caught:
            getattr(client, how)("?")
    assert (caught.value.status, caught.value.retry_after) == (status, retry_after)


def test_something_else_that_answers_is_an_error():
    with client_of(replies(200, "<html>hello</html>")) as (client, _):
        with pytest.raises(ServerError, match="is no model server: it sent b'<html>"):
            client.chat("?")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://"])
def test_an_address_that_is_none_is_an_error(url):
    with pytest.raises(ValueError, match="should look like http://127.0.0.1:8000"):
        Client(url)


def test_a_server_without_a_model_is_an_error():
    with Scripted(streams(), models=()) as server, Client(server.url) as client:
        with pytest.raises(ServerError, match="has no model yet"):
            client.chat("?")


def test_leaving_the_block_hangs_up():
    def endless(handler, body):
        handler.stream(ROLE, event({"content": "a"}), whole=False)
        handler.wait_for_hang_up()

    with client_of(endless) as (client, server):
        with client.stream("?") as stream:
            assert next(stream) == ("", "a")
        assert server.hung_up.wait(5)
        assert list(stream) == []
        assert stream.reply.answer == "a"


def test_another_thread_can_stop_a_stream_that_waits():
    waiting = threading.Event()

    def silent(handler, body):
        handler.stream(ROLE, event({"content": "a"}), whole=False)
        waiting.set()
        handler.wait_for_hang_up()

    with client_of(silent) as (client, server):
        stream, got = client.stream("?"), []
        reader = threading.Thread(target=lambda: got.extend(stream))
        reader.start()
        assert waiting.wait(5)
        stream.close()
        reader.join(5)
        assert not reader.is_alive() and got in ([("", "a")], [])
        assert server.hung_up.wait(5)


def test_the_proxy_is_not_asked_for_this_machine(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with client_of(replies(200, {"choices": [{"message": {"content": "x"}}]})) as (client, _):
        assert client.chat("?").answer == "x"


def test_the_file_works_alone_and_needs_httpx_only(tmp_path):
    source = Path(pipeline.__file__)
    names = [node for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if isinstance(node, ast.Import)]
    assert {name.name.split(".")[0] for node in names for name in node.names} - sys.stdlib_module_names == {"httpx"}
    shutil.copy(source, tmp_path)
    pieces = [ROLE, event({"content": "Hm.</think>Yes."}, "stop"), DONE]
    with Scripted(streams(*pieces)) as server:
        program = f"from pipeline import Client; print(*Client({server.url!r}, thinks=True).stream('?'))"
        run = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8"
        )
    assert run.stdout.strip() == "Delta(reasoning='Hm.', answer='Yes.')", run.stderr
