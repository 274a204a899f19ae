"""Every error is {"error": message} with the status of Model Server."""

import pytest

JSON = {"Content-Type": "application/json"}


def refused(reply, status: int, message: str) -> None:
    assert reply.status_code == status, reply.text
    assert list(reply.json()) == ["error"] and message in reply.json()["error"], reply.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v3/chat/completions", "/v1/completions", "/v3/completions"])
@pytest.mark.parametrize("body", [b"", b"{", b"not json", b'{"model": }'])
def test_what_is_no_json(client, path, body):
    refused(client.post(path, content=body, headers=JSON), 412, "JSON")


@pytest.mark.parametrize("path", ["/v3/chat/completions", "/v3/completions"])
def test_no_model_named(client, path):
    refused(client.post(path, json={"messages": []}), 412, "model")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v3/chat/completions", "/v3/completions"])
def test_a_model_that_is_not_served(client, target, path):
    body = target.body(model="nobody")
    refused(client.post(path, json=body), 404, "Mediapipe graph definition with requested name is not found")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"messages": []}, "Messages array cannot be empty"),
        ({"messages": ...}, "Messages missing in request"),
        ({"messages": "hello"}, "Messages are not an array"),
        ({"messages": ["hello"]}, "Message is not a JSON object"),
        ({"messages": [{"role": "user"}]}, "Every message must have both 'content' and 'role' fields"),
        ({"max_tokens": 0}, "max_tokens value should be greater than 0"),
        ({"max_tokens": -5}, "max_tokens is not an unsigned integer"),
        ({"max_tokens": "five"}, "max_tokens is not an unsigned integer"),
        ({"temperature": 2.5}, "temperature out of range(0.0, 2.0)"),
        ({"temperature": "hot"}, "temperature is not a valid number"),
        ({"top_p": 1.5}, "top_p out of range(0.0, 1.0)"),
        ({"frequency_penalty": 3}, "frequency_penalty out of range(-2.0, 2.0)"),
        ({"presence_penalty": -3}, "presence_penalty out of range(-2.0, 2.0)"),
        ({"stream": "yes"}, "Stream is not bool"),
        ({"stream_options": {"include_usage": True}}, "stream_options provided, but stream not set to true"),
        ({"stream": True, "stream_options": {"what": 1}}, "Found unexpected stream options"),
        ({"stop": 5}, "stop is not a string or array of strings"),
        ({"stop": ["a"] * 17}, "stop array must have no more than 16 strings"),
        ({"ignore_eos": "no"}, "ignore_eos accepts values true or false"),
    ],
)
def test_a_field_that_will_not_do(client, target, changes, message):
    refused(client.post("/v3/chat/completions", json=target.body(**changes)), 400, message)


@pytest.mark.parametrize(("prompt", "message"), [(..., "prompt is missing"), ("", "prompt is missing")])
def test_a_completion_without_a_prompt(client, target, prompt, message):
    refused(client.post("/v3/completions", json=target.body(messages=..., prompt=prompt)), 400, message)


def test_a_prompt_beyond_the_context(client, target):
    if target.kind == "ovms":
        pytest.skip("The context of the model that is served there is not known here.")
    long = [{"role": "user", "content": "word " * 9000}]
    refused(client.post("/v3/chat/completions", json=target.body(messages=long)), 400, "exceeds model max length: 8192")


def test_an_answer_beyond_the_limit_of_the_graph(client, target):
    refused(
        client.post("/v3/chat/completions", json=target.body(max_tokens=4294967295)),
        400,
        "max_tokens exceeds limit provided in graph config: 4096",
    )


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_method_that_is_not_supported(client, method):
    refused(client.request(method, "/v3/chat/completions"), 406, "nsupported method")


def test_after_all_these_the_server_still_answers(client, target):
    assert client.post("/v3/chat/completions", json=target.body()).status_code == 200
