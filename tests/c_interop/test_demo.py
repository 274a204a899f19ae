"""The demo and the command: their functions, and the page in a real browser."""

import re

import pytest

from notebooks.c_interop import __main__ as command
from notebooks.c_interop import demo, network
from tests.c_interop import tools


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The demo on a small model that says hello, without a chat template."""
    tools.built()
    folder = network.save_recitation(tmp_path / "model", [*b"hello ", network.END])
    monkeypatch.setattr(demo, "prepare", lambda model: folder)
    monkeypatch.setattr(demo, "chat", lambda tokenizer, question: "x")
    monkeypatch.setattr(demo, "_tokenizer", lambda folder: None)
    return folder


def test_an_answer_is_streamed_and_ends_with_its_tokens(small):
    shown = list(demo.answer("C", "Hello?"))
    assert shown[-1][0] == "hello "
    assert shown[-1][1].startswith("ids: 104 101 108 108 111 32 256\nms per token: ")


@pytest.mark.parametrize(
    ("language", "question", "message"),
    [("C", " ", "has 0 characters"), ("C", "x" * 501, "Write 1 to 500"), ("Cobol", "x", "no client in 'Cobol'")],
)
def test_bad_input_is_an_error(small, language, question, message):
    with pytest.raises(ValueError, match=message):
        list(demo.answer(language, question))


def test_a_visitor_finds_an_answered_example_and_changes_the_language(small, serve_demo, visit):
    from playwright.sync_api import expect

    with visit(serve_demo(demo.make_demo()), height=900) as page:
        answer = page.get_by_label("Answer")
        expect(answer).to_have_value("hello ", timeout=120_000)
        page.get_by_label("Rust").check()
        expect(page.get_by_text("catch_unwind").first).to_be_visible(timeout=180_000)
        page.get_by_label("C", exact=True).check()
        page.get_by_label("Question").fill(" ")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_text(re.compile("The question has 0 characters"))).to_be_visible(timeout=180_000)


def test_the_command_streams_and_says_what_is_ready(small, capsys):
    assert command.main(["x", "--folder", str(small)]) == 0
    assert capsys.readouterr().out.startswith("hello \nids: 104 101")
    assert command.main(["--list"]) == 0
    assert "C is ready." in capsys.readouterr().out
    assert command.main(["x", "--folder", "nowhere", "--language", "C"]) == 1
    assert "There is no generation_config.json" in capsys.readouterr().err
