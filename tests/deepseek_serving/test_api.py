"""The endpoints over a model of our own making: replies and settings as they reach the engine."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.deepseek_serving.fakes import http, wait_for

MESSAGES = [{"role": "user", "content": "héllo 👋"}]


def ask(app, **changes) -> httpx.Response:
    body = {"model": "toy", "messages": MESSAGES, "max_tokens": 50} | changes
    return http.post(f"{app.url}/v3/chat/completions", json={k: v for k, v in body.items() if v is not ...})


def events(reply: httpx.Response) -> list[dict]:
    lines = reply.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_whole_reply(shared):
    reply = ask(shared).json()
    assert reply["choices"] == [
        {
            "finish_reason": "stop",
            "index": 0,
            "logprobs": None,
            "message": {"content": "héllo 👋", "role": "assistant"},
        }
    ]
    prompt = len("héllo 👋".encode())
    assert reply["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": prompt + 1,
        "total_tokens": 2 * prompt + 1,
    }
    assert set(reply) == {"choices", "created", "model", "object", "usage"} and reply["object"] == "chat.completion"


def test_a_stream_begins_with_the_role_and_ends_with_done(shared):
    frames = events(ask(shared, stream=True))
    assert frames[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert "".join(frame["choices"][0]["delta"]["content"] for frame in frames[1:]) == "héllo 👋"
    assert [frame["choices"][0]["finish_reason"] for frame in frames] == [None] * (len(frames) - 1) + ["stop"]
    assert all(set(frame) == {"choices", "created", "model", "object"} for frame in frames)


def test_usage_comes_in_a_stream_when_it_is_asked_for(shared):
    frames = events(ask(shared, stream=True, stream_options={"include_usage": True}))
    assert all(frame["usage"] is None for frame in frames[:-1])
    assert frames[-1]["choices"] == [] and frames[-1]["usage"]["completion_tokens"] == len("héllo 👋".encode()) + 1


def test_completions_have_text_and_no_role(shared):
    body = {"model": "toy", "prompt": "once", "max_tokens": 3}
    reply = http.post(f"{shared.url}/v3/completions", json=body).json()
    assert reply["choices"] == [{"finish_reason": "length", "index": 0, "logprobs": None, "text": "onc"}]
    assert reply["object"] == "text_completion"
    frames = events(http.post(f"{shared.url}/v1/completions", json=body | {"stream": True}))
    assert "".join(frame["choices"][0]["text"] for frame in frames) == "onc"
    assert {frame["object"] for frame in frames} == {"text_completion.chunk"}


def test_settings_reach_the_pipeline(shared):
    settings = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "frequency_penalty": 1, "presence_penalty": -1}
    settings |= {"repetition_penalty": 1.1, "ignore_eos": True}
    ask(shared, **settings, seed=3, stop=["x", "y"])
    config = vars(shared.pipeline.configs[-1])
    assert config == settings | {
        "rng_seed": 3,
        "stop_strings": {"x", "y"},
        "include_stop_str_in_output": False,
        "do_sample": True,
        "max_new_tokens": 50,
    }
    ask(shared, temperature=0, top_k=0, max_tokens=..., stop="z", stream=True)
    config = vars(shared.pipeline.configs[-1])
    assert config["do_sample"] is False and "top_k" not in config
    assert config["max_new_tokens"] == 400  # the limit of the graph
    assert config["stop_strings"] == {"z"} and config["include_stop_str_in_output"] is True


def test_parts_of_text_are_one_text(shared):
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    reply = ask(shared, messages=[{"role": "user", "content": parts}]).json()
    assert reply["choices"][0]["message"]["content"] == "one two"


def test_nulls_are_as_if_not_given(shared):
    nulls = dict.fromkeys(["stream", "stream_options", "temperature", "stop", "tools", "n", "seed", "max_tokens"])
    assert ask(shared, **nulls).status_code == 200


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"model": ...}, 412, "model field is missing in JSON body"),
        ({"model": 1}, 412, "model field is not a string"),
        ({"model": "other"}, 404, "Mediapipe graph definition with requested name is not found"),
        ({"messages": ...}, 400, "Messages missing in request"),
        ({"messages": "hi"}, 400, "Messages are not an array"),
        ({"messages": []}, 400, "Messages array cannot be empty"),
        ({"messages": ["hi"]}, 400, "Message is not a JSON object"),
        ({"messages": [{"role": "user"}]}, 400, "Every message must have both 'content' and 'role' fields"),
        ({"messages": [{"content": "hi"}]}, 400, "Every message must have both 'content' and 'role' fields"),
        ({"messages": [{"role": "user", "content": []}]}, 400, "Every message must have both"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "this model takes text only"),
        ({"messages": [{"role": "refuse", "content": "x"}]}, 400, "The chat template cannot take these messages"),
        ({"messages": [{"role": "user", "content": ""}]}, 400, "The prompt has no tokens"),
        ({"stream": "yes"}, 400, "Stream is not bool"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options provided, but stream not set to true"),
        ({"stream": True, "stream_options": {"other": 1}}, 400, "Found unexpected stream options"),
        ({"stream": True, "stream_options": 1}, 400, "stream_options is not an object"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, 400, "include_usage is not a boolean"),
        ({"max_tokens": 0}, 400, "max_tokens value should be greater than 0"),
        ({"max_tokens": -1}, 400, "max_tokens is not an unsigned integer"),
        ({"max_tokens": "5"}, 400, "max_tokens is not an unsigned integer"),
        ({"max_tokens": True}, 400, "max_tokens is not an unsigned integer"),
        ({"max_tokens": 401}, 400, "max_tokens exceeds limit provided in graph config: 400"),
        ({"max_completion_tokens": 401}, 400, "max_completion_tokens exceeds limit"),
        ({"temperature": 3}, 400, "temperature out of range(0.0, 2.0)"),
        ({"temperature": "warm"}, 400, "temperature is not a valid number"),
        ({"top_p": -0.1}, 400, "top_p out of range(0.0, 1.0)"),
        ({"top_k": 1.5}, 400, "top_k is not an unsigned integer"),
        ({"seed": -1}, 400, "seed is not an unsigned integer"),
        ({"repetition_penalty": 0}, 400, "repetition_penalty out of range"),
        ({"stop": [1]}, 400, "stop is not a string or array of strings"),
        ({"stop": ["x"] * 17}, 400, "stop array must have no more than 16 strings"),
        ({"n": 2}, 400, "n other than 1 is not supported"),
        ({"tools": [{"type": "function"}]}, 400, "tools is not supported by this server"),
        ({"logprobs": True}, 400, "logprobs is not supported by this server"),
        ({"ignore_eos": 1}, 400, "ignore_eos accepts values true or false"),
        ({"top_k": 7}, 500, "The request was refused: top_k of 7 is bad luck"),
    ],
)
def test_a_request_that_will_not_do_gets_its_message(shared, changes, status, message):
    reply = ask(shared, **changes)
    assert reply.status_code == status and set(reply.json()) == {"error"} and message in reply.json()["error"]
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("prompt", "message"), [(..., "prompt is missing"), (5, "prompt is not a string")])
def test_a_completion_without_a_prompt_gets_its_message(shared, prompt, message):
    body = {"model": "toy"} | ({} if prompt is ... else {"prompt": prompt})
    reply = http.post(f"{shared.url}/v3/completions", json=body)
    assert (reply.status_code, reply.json()) == (400, {"error": message})


def test_prompt_and_answer_must_fit_the_context(shared):
    too_long = [{"role": "user", "content": "x" * 1000}]
    message = "Number of prompt tokens: 1000 exceeds model max length: 1000"
    assert ask(shared, messages=too_long, max_tokens=...).json() == {"error": message}
    nearly = [{"role": "user", "content": "x" * 990}]
    reply = ask(shared, messages=nearly, max_tokens=11)
    assert reply.status_code == 400 and "990 + max tokens value: 11 exceeds" in reply.json()["error"]
    assert ask(shared, messages=nearly, max_tokens=...).json()["usage"]["completion_tokens"] == 10


def test_metrics_count_what_happened(app):
    ask(app)
    ask(app, messages=[{"role": "user", "content": "ab"}])
    assert wait_for(lambda: app.guard.in_flight == 0)
    reply = http.get(f"{app.url}/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in reply.text.splitlines() if not line.startswith("#"))
    generated = len("héllo 👋".encode()) + 1 + 3
    assert float(values['llm_generated_tokens_total{name="toy"}']) == generated
    assert float(values['llm_prompt_tokens_total{name="toy"}']) == generated - 2
    assert float(values['llm_requests_finished_total{name="toy"}']) == 2
    assert float(values['ovms_current_graphs{name="toy"}']) == 0
    assert float(values['llm_kv_cache_usage_ratio{name="toy"}']) == 0.5


def test_metrics_tell_running_from_waiting(app):
    app.pipeline.pause = 0.01
    app.pipeline.answer = lambda prompt: prompt * 40
    bodies = [{"model": "toy", "prompt": f"request {i}", "max_tokens": 300, "stream": True} for i in range(3)]
    with ThreadPoolExecutor() as pool:
        requests = [pool.submit(http.post, f"{app.url}/v3/completions", json=body, timeout=30) for body in bodies]
        seen = wait_for(lambda: (app.engine.running, app.engine.waiting) == (2, 1))
        app.pipeline.pause = 0
        assert [reply.result().status_code for reply in requests] == [200] * 3
    assert seen and wait_for(lambda: (app.engine.running, app.engine.waiting) == (0, 0))


def test_a_changed_repository_is_served_after_reload(app, toy, tmp_path, monkeypatch):
    from notebooks.deepseek_serving.server import repository, service
    from tests.deepseek_serving.fakes import Engine

    monkeypatch.setattr(service, "Engine", Engine)
    reload = f"{app.url}/v1/config/reload"
    assert http.post(reload).status_code == 200 and app.service.engine is app.engine
    repository.write(toy, "renamed", tmp_path / "ir", max_num_seqs=5)
    reply = http.post(reload)
    assert app.guard.max_concurrent == 5 + 2
    assert reply.status_code == 201 and list(reply.json()) == ["renamed"]
    assert ask(app, model="renamed").status_code == 200 and ask(app).status_code == 404
    assert wait_for(lambda: app.engine.problem == "The server is stopping.")
    (toy / "renamed/openvino_model.bin").unlink()
    reply = http.post(reload)
    assert reply.status_code == 400 and "openvino_model.bin is missing" in reply.json()["error"]
    assert ask(app, model="renamed").status_code == 200  # the old one goes on
    app.service.engine.close()
