"""The demo: its function, and in a real browser."""

import os
import re
import signal

import pytest

from notebooks.llm_distributed import demo


@pytest.fixture(scope="module")
def address(serve_demo):
    return serve_demo(demo.make_demo())


def test_an_answer_grows_and_its_picture_has_both_ranks():
    *_, (answer, picture) = demo.Running("tiny", "CPU").answer(demo.QUESTION, 12)
    assert "Paris" in answer
    assert "Rank 0" in picture and "Rank 1" in picture and "query heads: 6 to 8" in picture
    assert re.search(r"sent for it: 62 messages, 141 kB", picture)


@pytest.mark.parametrize(
    ("question", "tokens", "message"),
    [
        ("  ", 8, "has 0 characters. Write 1 to 500"),
        ("x" * 501, 8, "501 characters"),
        ("Hi", 0, "tokens is 0. Choose 1"),
    ],
)
def test_bad_input_is_an_error(question, tokens, message):
    with pytest.raises(ValueError, match=message):
        next(demo.Running("tiny", "CPU").answer(question, tokens))


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_rank_that_dies_is_a_message_and_the_next_question_is_answered():
    running = demo.Running("tiny", "CPU")
    with pytest.raises(ValueError, match=r"Rank 1 .* was killed by signal 9. .* Ask again to start new ones"):
        for _ in running.answer("Tell me a long story.", 64):
            os.kill(running._ranks.pids[1], signal.SIGKILL)
    *_, (answer, _) = running.answer(demo.QUESTION, 12)
    assert "Paris" in answer


def test_a_visitor_finds_an_answered_example(address, visit):
    from playwright.sync_api import expect

    with visit(address, height=700) as page:
        expect(page.get_by_label("Answer")).to_have_value(re.compile("Paris"), timeout=120_000)
        expect(page.get_by_text("Rank 1")).to_be_visible()
        page.get_by_label("Question").fill("")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_text("The question has 0 characters. Write 1 to 500.")).to_be_visible(timeout=180_000)
