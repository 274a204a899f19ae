"""The demo: its functions, over gradio_client, and in a browser, with a fake pipeline behind the real server."""

import re

import pytest
from gradio_client import Client as Visitor

from notebooks.ollama_openvino import demo
from tests.ollama_openvino.fakes import Engine
from tests.utils.serving.fakes import wait_for


@pytest.fixture
def address(app, serve_demo):
    return serve_demo(demo.make_demo(host=app.url))


def test_the_table_says_what_is_in_memory(app):
    backend = demo.Backend(host=app.url)
    assert "| toy:latest | 0.00" in backend.table() and "not loaded" in backend.table()
    backend.load("toy", "5m")
    assert re.search(r"\| toy:latest \| [\d.]+ MB \| [\d.]+ MB \| (300|299) s \|", backend.table())
    backend.load("toy", "-1")
    assert "| never |" in backend.table()
    backend.unload("toy")
    assert "not loaded" in backend.table()


@pytest.mark.parametrize(("question", "message"), [(" \n", "is empty"), ("x" * 4001, "4001 characters")])
def test_a_question_that_will_not_do_is_an_error(question, message):
    with pytest.raises(ValueError, match=message):
        demo.conversation([], question)


def test_a_conversation_goes_on():
    history = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b"}]
    messages = demo.conversation(history, "c", "Be brief.")
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "Be brief."),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
    ]


def test_a_visitor_who_leaves_ends_the_answer(app):
    app.client.generate("toy")
    engine = Engine.made[-1]
    engine.pipeline.pause, engine.pipeline.answer = 0.01, lambda prompt: prompt * 50
    pieces = demo.stream(app.client, "toy", [{"role": "user", "content": "hi"}], {}, "5m")
    next(pieces)
    pieces.close()
    assert wait_for(lambda: engine.aborted == 1) and wait_for(lambda: app.guard.in_flight == 0)


def test_a_client_gets_answers_and_messages(address, app):
    visitor = Visitor(address, verbose=False)
    arguments = ["toy", "hello", [], "5m", "Be Max.", 0, 64]
    _, chat, speed, table = visitor.predict(*arguments, api_name="/respond")
    assert [message["role"] for message in chat] == ["user", "assistant"]
    assert "[system]Be Max.[user]hello[assistant]" in str(chat[1]["content"])
    assert re.match(r"\d+ tokens, \d+ tokens/s", speed) and "toy:latest" in table
    assert "not loaded" in visitor.predict("toy", api_name="/unload")
    assert "| never |" in visitor.predict("toy", "-1", api_name="/load")
    with pytest.raises(Exception, match="model 'nobody:latest' not found"):
        visitor.predict("nobody", *arguments[1:], api_name="/respond")
    with pytest.raises(Exception, match="The question is empty"):
        visitor.predict("toy", " ", *arguments[2:], api_name="/respond")


def test_a_visitor_sees_an_answer_and_manages_models(address, visit):
    from playwright.sync_api import expect

    with visit(address) as page:
        expect(page.get_by_text("[assistant]").first).to_be_visible(timeout=180_000)
        expect(page.get_by_role("cell", name="toy:latest")).to_be_visible()
        page.get_by_role("button", name="Unload").click()
        expect(page.get_by_role("cell", name="not loaded")).to_be_visible(timeout=20_000)
        page.get_by_role("button", name="Load", exact=True).click()
        expect(page.get_by_role("cell", name="not loaded")).to_have_count(0, timeout=20_000)
        Engine.made[-1].pipeline.answer = lambda prompt: prompt.rsplit("[user]", 1)[1]
        page.get_by_label("Question").fill("Which model are you?")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("Which model are you?[assistant]").first).to_be_visible(timeout=20_000)
