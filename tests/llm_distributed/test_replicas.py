"""The OpenAI routes of a replica over a model of our own making, without Ray."""

import json
import socket

import pytest

from notebooks.llm_distributed.measuring import scaling
from notebooks.llm_distributed.server import replicas
from tests.utils.serving import fakes
from tests.utils.serving.fakes import http, served, wait_for
from utils.serving.load import Target

MESSAGES = [{"role": "user", "content": "héllo 👋"}]


@pytest.fixture(scope="module")
def address():
    engine = fakes.Engine(fakes.settings())
    engine.start()
    assert engine.loaded.wait(10)
    with served(replicas.create_app(engine)) as (url, _):
        yield url
    engine.close()


def ask(address: str, **changes):
    body = {"model": "toy", "messages": MESSAGES, "max_tokens": 50} | changes
    return http.post(f"{address}/v1/chat/completions", json=body)


def test_a_whole_answer(address):
    reply = ask(address).json()
    (choice,) = reply["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("héllo 👋", "stop")
    assert reply["usage"] == {"prompt_tokens": 11, "completion_tokens": 12, "total_tokens": 23}
    assert ask(address, max_tokens=3).json()["choices"][0]["finish_reason"] == "length"


def test_a_streamed_answer_ends_with_its_usage(address):
    reply = ask(address, stream=True, stream_options={"include_usage": True})
    *lines, last, rest = reply.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    *pieces, usage = (json.loads(line.removeprefix("data: ")) for line in lines)
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == "héllo 👋"
    assert [piece["choices"][0]["finish_reason"] for piece in pieces][-1] == "stop"
    assert usage["usage"]["completion_tokens"] == 12 and usage["choices"] == []


def test_the_model_is_listed(address):
    assert [model["id"] for model in http.get(f"{address}/v1/models").json()["data"]] == ["toy"]


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"model": "other"}, 404, "There is no model 'other'. It is 'toy'."),
        ({"messages": []}, 400, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "user"}]}, 400, "messages.0.content: Field required"),
        ({"messages": [{"role": "refuse", "content": "x"}]}, 400, "The chat template cannot take these messages"),
        ({"max_tokens": 0}, 400, "max_tokens: Input should be greater than or equal to 1"),
        ({"max_tokens": 1000}, 400, "The prompt has 11 tokens and max_tokens is 1000; together they may be 1000"),
        ({"temperature": "hot"}, 400, "temperature: Input should be a valid number"),
    ],
)
def test_bad_requests_are_errors_that_name_the_fault(address, changes, status, message):
    reply = ask(address, **changes)
    assert reply.status_code == status and message in reply.json()["error"]


def test_a_client_that_leaves_ends_its_generation():
    engine = fakes.Engine(fakes.settings())
    engine.start()
    assert engine.loaded.wait(10)
    engine.pipeline.pause, engine.pipeline.answer = 0.02, lambda prompt: "x" * 500
    body = {"model": "toy", "messages": MESSAGES, "max_tokens": 900, "stream": True}
    with served(replicas.create_app(engine)) as (url, _):
        with http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
            next(reply.iter_lines())
        assert wait_for(lambda: engine.aborted == 1)
    engine.close()


def test_clients_count_the_requests_that_fail():
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        target = Target(f"http://127.0.0.1:{taken.getsockname()[1]}/v1", "toy")
        found = scaling.under_load(target, 2, lambda: None, answer=4)
    assert found.whole == 0 and len(found.errors) == 2
