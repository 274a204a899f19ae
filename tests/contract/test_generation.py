"""Chat and text completions, whole and streamed, to the bytes of the frames."""

import json

import pytest

VERSIONS = ["v1", "v3"]


def frames(reply) -> list[dict]:
    """The events of a stream, which must be `data: JSON` and an empty line each, `data: [DONE]` being the last."""
    assert reply.status_code == 200 and reply.headers["content-type"].split(";")[0] == "text/event-stream"
    parts = reply.content.split(b"\n\n")
    assert parts[-2:] == [b"data: [DONE]", b""]
    assert all(part.startswith(b"data: {") and b"\n" not in part and b"\r" not in part for part in parts[:-2])
    return [json.loads(part.removeprefix(b"data: ")) for part in parts[:-2]]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_whole_chat_reply(client, target, version):
    reply = client.post(f"/{version}/chat/completions", json=target.body())
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("application/json")
    found = reply.json()
    assert "id" not in found
    assert found["object"] == "chat.completion" and found["model"] == target.model and type(found["created"]) is int
    (choice,) = found["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] in ("stop", "length") and choice["logprobs"] is None
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    usage = found["usage"]
    assert 0 < usage["completion_tokens"] <= 8 and usage["prompt_tokens"] > 3
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_chat_stream(client, target, version):
    found = frames(client.post(f"/{version}/chat/completions", json=target.body(stream=True)))
    deltas = [frame["choices"][0]["delta"] for frame in found]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert all(isinstance(delta["content"], str) for delta in deltas[1:])
    assert [frame["choices"][0]["finish_reason"] for frame in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    for frame in found:
        assert frame["object"] == "chat.completion.chunk" and frame["model"] == target.model
        assert "id" not in frame and "usage" not in frame and frame["choices"][0]["index"] == 0


def test_stream_and_whole_reply_are_the_same_text(client, target):
    whole = client.post("/v3/chat/completions", json=target.body()).json()
    found = frames(client.post("/v3/chat/completions", json=target.body(stream=True)))
    text = "".join(frame["choices"][0]["delta"]["content"] for frame in found[1:])
    assert text == whole["choices"][0]["message"]["content"]


def test_usage_in_a_stream_is_a_frame_of_its_own(client, target):
    body = target.body(stream=True, stream_options={"include_usage": True})
    found = frames(client.post("/v3/chat/completions", json=body))
    assert found[-1]["choices"] == [] and all(frame["choices"] for frame in found[:-1])
    assert all(frame.get("usage") is None for frame in found[:-1])
    whole = client.post("/v3/chat/completions", json=target.body()).json()
    assert found[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert found[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_no_usage_in_a_stream_that_does_not_want_it(client, target):
    body = target.body(stream=True, stream_options={"include_usage": False})
    assert all(frame["choices"] for frame in frames(client.post("/v3/chat/completions", json=body)))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_whole_completion(client, target, version):
    body = target.body(messages=..., prompt="Once upon a time", max_tokens=5, ignore_eos=True)
    found = client.post(f"/{version}/completions", json=body).json()
    (choice,) = found["choices"]
    assert found["object"] == "text_completion" and found["usage"]["completion_tokens"] == 5
    assert choice["finish_reason"] == "length" and choice["text"] and "message" not in choice


def test_a_completion_stream(client, target):
    body = target.body(messages=..., prompt="Once upon a time", max_tokens=5, ignore_eos=True)
    found = frames(client.post("/v3/completions", json=body | {"stream": True}))
    text = "".join(frame["choices"][0]["text"] for frame in found)
    assert text == client.post("/v3/completions", json=body).json()["choices"][0]["text"]
    assert all(frame["object"] == "text_completion.chunk" and "delta" not in frame["choices"][0] for frame in found)


def test_max_tokens_counts_tokens(client, target):
    for name in ("max_tokens", "max_completion_tokens"):
        body = target.body(max_tokens=...) | {name: 3, "ignore_eos": True}
        found = client.post("/v3/chat/completions", json=body).json()
        assert found["usage"]["completion_tokens"] == 3 and found["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_ends_the_answer(client, target):
    body = target.body(messages=..., prompt="One, two, three, four,", max_tokens=40, ignore_eos=True)
    text = client.post("/v3/completions", json=body).json()["choices"][0]["text"]
    stop = next(piece for piece in text.split()[2:] if len(piece) > 2)
    found = client.post("/v3/completions", json=body | {"stop": stop}).json()["choices"][0]
    assert found["finish_reason"] == "stop" and found["text"].rstrip() == text[: text.index(stop)].rstrip()


def test_the_same_seed_gives_the_same_text(client, target):
    body = target.body(temperature=1.5, seed=7, max_tokens=12, ignore_eos=True)
    first, again = (client.post("/v3/chat/completions", json=body).json() for _ in range(2))
    other = client.post("/v3/chat/completions", json=body | {"seed": 8}).json()
    assert first["choices"] == again["choices"] and first["choices"] != other["choices"]


def test_a_conversation_is_read_as_a_whole(client, target):
    one = client.post("/v3/chat/completions", json=target.body()).json()["usage"]["prompt_tokens"]
    messages = [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "Say hello."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": [{"type": "text", "text": "And in French?"}]},
    ]
    found = client.post("/v3/chat/completions", json=target.body(messages=messages)).json()
    assert found["usage"]["prompt_tokens"] > one and found["choices"][0]["message"]["content"]
