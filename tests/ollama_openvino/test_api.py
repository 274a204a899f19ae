"""The endpoints, asked by the unmodified client of Ollama, with a fake pipeline that answers with its prompt."""

import json
import threading

import ollama
import pytest

from tests.ollama_openvino import fakes
from tests.ollama_openvino.fakes import Engine, add, toy_package
from tests.utils.serving.fakes import http, wait_for

HELLO = [{"role": "user", "content": "hello"}]


def ask(app, content: str = "hello", **options):
    return app.client.chat("toy", [{"role": "user", "content": content}], **options)


def config():
    """The settings with which the last engine generated last."""
    return Engine.made[-1].pipeline.configs[-1]


def post(app, path: str, body, **headers) -> tuple[int, dict]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = http.post(f"{app.url}{path}", content=content, headers=headers)
    return reply.status_code, json.loads(reply.text.splitlines()[-1]) if reply.text else {}


def test_the_chat_template_is_applied_once(app):
    assert ask(app).message.content == "[user]hello[assistant]"
    assert app.client.generate("toy", "hello").response == "[user]hello[assistant]"
    assert app.client.generate("toy", "hello", raw=True).response == "hello"


def test_a_stream_has_pieces_and_ends_with_the_counts_of_tokens(app):
    engine_of(app).pipeline.pause = 0.005
    pieces = list(ask(app, "Naïve 日本語", stream=True))
    text = "[user]Naïve 日本語[assistant]"
    assert "".join(piece.message.content for piece in pieces) == text
    assert len(pieces) > 2 and [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    last = pieces[-1]
    assert last.done_reason == "stop" and last.prompt_eval_count == len(text.encode())
    assert last.eval_count == len(text.encode()) + 1, "a token is a byte here, and one ends the answer"
    assert last.total_duration >= last.eval_duration > 0 and last.prompt_eval_duration > 0


def test_a_whole_reply_is_the_stream_in_one(app):
    reply = ask(app)
    assert (reply.message.role, reply.done, reply.done_reason) == ("assistant", True, "stop")
    assert reply.eval_count == len("[user]hello[assistant]") + 1
    assert ask(app, options={"num_predict": 3}).message.content == "[us"
    assert ask(app, options={"num_predict": 3}).done_reason == "length"


def test_the_answer_ends_before_a_stop_string(app):
    engine_of(app).pipeline.pause = 0.01
    for stream in (False, True):
        replies = ask(app, "one END two", options={"stop": ["END"]}, stream=stream)
        replies = list(replies) if stream else [replies]
        assert "".join(reply.message.content for reply in replies) == "[user]one "
        assert replies[-1].done_reason == "stop" and replies[-1].eval_count < len("[user]one END two")


def test_options_reach_the_engine(app):
    ask(app, options={"temperature": 0.5, "seed": 7, "top_k": 3, "top_p": 0.4, "repeat_penalty": 1.2})
    one = config()
    assert (one.temperature, one.rng_seed, one.top_k, one.top_p, one.repetition_penalty) == (0.5, 7, 3, 0.4, 1.2)
    assert one.do_sample is True
    ask(app, options={"temperature": 0})
    assert config().do_sample is False


def test_system_messages_and_parameters_of_the_model_come_first_unless_a_request_has_its_own(app):
    shots = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    app.client.create(
        model="max", from_="toy", system="Be Max.", messages=shots, parameters={"top_k": 5, "stop": ["z"]}
    )
    reply = app.client.chat("max", HELLO)
    assert reply.message.content == "[system]Be Max.[user]a[assistant]b[user]hello[assistant]"
    assert config().top_k == 5
    own = [{"role": "system", "content": "Be Ann."}, *HELLO]
    assert app.client.chat("max", own).message.content.startswith("[system]Be Ann.[user]a")
    assert app.client.generate("max", "x", system="Be Eve.").response.startswith("[system]Be Eve.[user]a")
    assert len(app.models.loaded) == 1, "models that share a package share its engine"
    shown = app.client.show("max")
    assert shown.modelfile.startswith("FROM max:latest\nModelType OpenVINO\nPARAMETER top_k 5\n")
    assert shown.capabilities == ["completion"] and shown.modelinfo["toy.context_length"] == 1000


def test_models_are_listed_copied_shown_and_deleted(app):
    app.client.copy("toy", "me/toy:v1")
    assert {model.model for model in app.client.list().models} == {"toy:latest", "me/toy:v1"}
    assert app.client.ps().models == []
    app.client.delete("me/toy:v1")
    assert [model.model for model in app.client.list().models] == ["toy:latest"]
    assert http.get(f"{app.url}/api/version").json()["version"].startswith("0.0.0-openvino-genai-2")
    assert http.get(app.url).status_code == http.head(app.url).status_code == 200


def test_a_request_without_a_prompt_loads_and_keep_alive_0_unloads(app):
    assert app.client.generate("toy").done_reason == "load"
    (running,) = app.client.ps().models
    assert running.name == "toy:latest" and running.context_length == 1000 and running.size > 0
    engine = Engine.made[-1]
    assert app.client.generate("toy", keep_alive=0).done_reason == "unload"
    assert wait_for(lambda: engine.problem == "The server is stopping.") and app.client.ps().models == []
    ask(app, keep_alive=0.05)
    assert wait_for(lambda: app.client.ps().models == []) and len(Engine.made) == 2


def test_a_request_that_came_meanwhile_keeps_the_model(app):
    ask(app, keep_alive=0.2)
    ask(app, keep_alive=60)
    assert not wait_for(lambda: app.client.ps().models == [], 0.5) and len(Engine.made) == 1


def test_the_model_that_was_idle_longest_makes_room(app, tmp_path):
    for name in ("b", "c"):
        add(app, toy_package(tmp_path, name), name)
    for name in ("toy", "b", "c"):
        app.client.generate(name)
    assert {model.name for model in app.client.ps().models} == {"b:latest", "c:latest"}


def test_a_model_in_use_is_not_unloaded_for_another(app, tmp_path):
    for name in ("b", "c"):
        add(app, toy_package(tmp_path, name), name)
        app.client.generate(name)
    for engine in Engine.made:
        engine.pipeline.hold.clear()
    threads = [threading.Thread(target=app.client.generate, args=(name, "hi")) for name in ("b", "c")]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: [each.users for each in app.models.loaded.values()] == [1, 1])
    with pytest.raises(ollama.ResponseError, match="2 models are in use") as caught:
        app.client.generate("toy")
    assert caught.value.status_code == 503
    for engine in Engine.made:
        engine.pipeline.hold.set()
    for thread in threads:
        thread.join()


def test_a_model_larger_than_the_memory_is_refused(app, monkeypatch):
    monkeypatch.setattr("utils.preflight.free_gb", lambda: 0.5)
    with pytest.raises(ollama.ResponseError, match=r"needs more memory \(1.0 GB\) than is free \(0.5 GB\)"):
        ask(app)
    monkeypatch.undo()
    assert ask(app).done


def test_a_model_deleted_while_it_answers_answers_to_the_end(app):
    engine_of(app).pipeline.pause = 0.01
    stream = ask(app, "x" * 100, stream=True)
    text = next(stream).message.content
    app.client.delete("toy")
    assert app.client.list().models == []
    text += "".join(piece.message.content for piece in stream)
    assert text == "[user]" + "x" * 100 + "[assistant]"
    assert wait_for(lambda: not app.models.loaded)
    with pytest.raises(ollama.ResponseError, match="model 'toy:latest' not found") as caught:
        ask(app)
    assert caught.value.status_code == 404


def engine_of(app) -> Engine:
    app.client.generate("toy")
    return Engine.made[-1]


def test_a_client_that_leaves_ends_its_generation(app):
    engine = engine_of(app)
    engine.pipeline.pause = 0.01
    engine.pipeline.answer = lambda prompt: prompt * 20
    stream = ask(app, "hello", stream=True)
    next(stream)
    stream.close()
    assert wait_for(lambda: engine.aborted == 1) and wait_for(lambda: app.guard.in_flight == 0)
    assert [each.users for each in app.models.loaded.values()] == [0]
    assert len(engine.pipeline.handles[-1].left) > 50


def test_a_full_queue_sends_further_requests_away(app):
    engine = engine_of(app)
    engine.pipeline.hold.clear()
    threads = [threading.Thread(target=ask, args=(app,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: app.guard.in_flight == 4)
    status, reply = post(app, "/api/chat", {"model": "toy", "messages": HELLO})
    assert status == 503 and "Too many requests" in reply["error"]
    engine.pipeline.hold.set()
    for thread in threads:
        thread.join()
    assert ask(app).done


def test_an_engine_that_fails_is_an_error_and_the_next_request_gets_a_new_one(app):
    engine = engine_of(app)
    engine.pipeline.fail = RuntimeError("out of memory")
    with pytest.raises(ollama.ResponseError, match="The engine has failed: out of memory"):
        ask(app)
    assert ask(app).done and len(Engine.made) == 2


def test_thoughts_are_a_field_of_their_own(app, monkeypatch):
    with pytest.raises(ollama.ResponseError, match="toy:latest does not support thinking"):
        ask(app, think=True)
    app.client.generate("toy", keep_alive=0)
    monkeypatch.setattr(Engine, "template", "{{ enable_thinking }}")
    engine = engine_of(app)
    engine.pipeline.answer = lambda prompt: "17 * 3: 30 + 21</think>\n\nIt is 51."
    for stream in (False, True):
        replies = ask(app, think=True, stream=stream)
        replies = list(replies) if stream else [replies]
        assert "".join(reply.message.thinking or "" for reply in replies) == "17 * 3: 30 + 21"
        assert "".join(reply.message.content for reply in replies) == "It is 51."
    reply = app.client.generate("toy", "x", think=True)
    assert (reply.thinking, reply.response) == ("17 * 3: 30 + 21", "It is 51.")


BAD = [
    ("/api/chat", b"{", 400, "Cannot parse JSON body"),
    ("/api/chat", [], 400, "The body must be a JSON object"),
    ("/api/chat", {"messages": HELLO}, 400, "model is missing"),
    ("/api/chat", {"model": "nobody", "messages": HELLO}, 404, "model 'nobody:latest' not found"),
    ("/api/chat", {"model": "../../etc/passwd", "messages": HELLO}, 400, "is no name of a model"),
    ("/api/chat", {"model": "toy", "messages": "hi"}, 400, "messages must be a list"),
    ("/api/chat", {"model": "toy", "messages": [{"role": "robot"}]}, 400, "A message needs a role"),
    ("/api/chat", {"model": "toy", "messages": [HELLO[0] | {"images": ["eA=="]}]}, 400, "no model that sees images"),
    ("/api/chat", {"model": "toy", "messages": HELLO, "tools": [{}]}, 400, "does not support tools"),
    ("/api/chat", {"model": "toy", "messages": HELLO, "stream": 1}, 400, "stream must be true or false"),
    ("/api/chat", {"model": "toy", "messages": HELLO, "options": {"mirostat": 2}}, 400, "mirostat is not supported"),
    ("/api/chat", {"model": "toy", "messages": HELLO, "format": 3}, 400, 'format must be "json" or a JSON schema'),
    ("/api/chat", {"model": "toy", "messages": HELLO, "logprobs": True}, 400, "logprobs are not supported"),
    (
        "/api/chat",
        {"model": "toy", "messages": [{"role": "user", "content": "x" * 2000}]},
        400,
        "The prompt has 2017 tokens",
    ),
    ("/api/generate", {"model": "toy", "prompt": "x", "template": "{{ .Prompt }}"}, 400, "template is not supported"),
    ("/api/generate", {"model": "toy", "prompt": "x", "suffix": "y"}, 400, "suffix is not supported"),
    ("/api/embed", {"model": "toy", "input": "x"}, 400, "toy:latest does not support embeddings"),
    ("/api/show", {"model": "nobody"}, 404, "not found"),
    ("/api/create", {"model": "x"}, 400, "Give either from"),
    ("/api/create", {"model": "x", "from": "toy", "template": "y"}, 400, "template is not supported"),
    ("/api/create", {"model": "x", "from": "toy", "infer_device": "C;PU"}, 400, "infer_device is"),
    ("/api/create", {"model": "x", "from": "nobody"}, 200, "model 'nobody:latest' not found"),
    ("/api/pull", {"model": "x"}, 501, "has no registry"),
    ("/api/chat", b"[" * 100 + b"]" * 100, 400, "nested deeper than 64"),
    ("/nowhere", {}, 404, "Not Found"),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), BAD)
def test_what_is_wrong_is_said(app, path, body, status, message):
    found, reply = post(app, path, body)
    assert found == status and message in reply["error"]


def test_a_web_page_cannot_use_the_server(app):
    status, reply = post(app, "/api/chat", {"model": "toy", "messages": HELLO}, Origin="https://evil.example.org")
    assert status == 403 and "no requests of web pages" in reply["error"]
    status, _ = post(app, "/api/chat", {"model": "toy", "messages": HELLO}, Host="evil.example.org")
    assert status == 403


def test_an_upload_that_is_not_what_it_says_is_refused(app):
    digest = "sha256:" + "0" * 64
    status, reply = post(app, f"/api/blobs/{digest}", b"data")
    assert status == 400 and "was changed or cut short" in reply["error"]
    assert post(app, "/api/blobs/..%2f..%2fetc", b"data")[0] in (400, 404)
    assert http.head(f"{app.url}/api/blobs/{digest}").status_code == 404
    app.store.max_bytes = 10
    status, reply = post(app, f"/api/blobs/{digest}", b"more than ten bytes")
    assert status == 413 and "The file is larger than" in reply["error"]
    assert not list(app.store.blobs.glob(".partial-*"))


def test_a_hostile_package_is_refused_with_its_fault(app, tmp_path):
    hostile = fakes.archive(tmp_path / "hostile.tar.gz", fakes.member("../evil"))
    with pytest.raises(ollama.ResponseError, match="names a path outside"):
        add(app, hostile, "hostile")
    assert [model.model for model in app.client.list().models] == ["toy:latest"]


def test_vectors_of_texts(app, tmp_path):
    add(app, toy_package(tmp_path, "v", state="Parameter"), "vectors")
    reply = app.client.embed("vectors", ["a", "bb"])
    assert reply.embeddings == [[1, 3, 4], [2, 3, 4]] and reply.prompt_eval_count == 3
    assert app.client.embed("vectors", "a", dimensions=2).embeddings == [pytest.approx([10**-0.5, 3 * 10**-0.5])]
    assert app.client.embeddings("vectors", "abc").embedding == [3, 3, 4]
    assert app.client.embed("vectors", "x" * 2000).prompt_eval_count == 1000
    with pytest.raises(ollama.ResponseError, match="A text has 2000 tokens, more than the 1000"):
        app.client.embed("vectors", "x" * 2000, truncate=False)
    with pytest.raises(ollama.ResponseError, match="vectors:latest does not support generate"):
        app.client.generate("vectors", "hi")
    assert app.client.show("vectors").capabilities == ["embedding"]
