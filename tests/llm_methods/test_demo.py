"""The demo: its function, and in a real browser."""

import re

import pytest

from notebooks.llm_methods import demo


@pytest.mark.parametrize(
    ("weights", "choosing", "question", "message"),
    [
        ("FP16", "greedy", " ", "has 0 letters. Write 1 to 2,000"),
        ("FP16", "greedy", "x" * 2001, "has 2001 letters"),
        ("INT5", "greedy", "Hello.", "INT5 with greedy is not offered"),
        ("GPTQ", "greedy", "Hello.", "GPTQ with greedy is not offered"),
    ],
)
def test_bad_input_is_an_error(weights, choosing, question, message):
    with pytest.raises(ValueError, match=message):
        demo.answer(weights, choosing, question)


def test_a_visitor_finds_two_answers_and_asks_on(serve_demo, visit):
    from playwright.sync_api import expect

    with visit(serve_demo(demo.make_demo())) as page:
        second = page.get_by_label("Answer of the second model")
        expect(second).to_have_value(re.compile(r"\w{4}"), timeout=240_000)
        expect(page.get_by_label("Answer of the first model")).to_have_value(re.compile("blue"))
        page.get_by_label("Tokens of the second model").click()
        page.get_by_role("option", name="prompt lookup").click()
        page.get_by_label("Question").fill("What is the capital of France?")
        page.get_by_role("button", name="Ask both").click()
        expect(second).to_have_value(re.compile("Paris"), timeout=240_000)
        expect(page.locator("body")).to_contain_text("INT4 asymmetric, prompt lookup")
        page.get_by_label("Question").fill("")
        page.get_by_role("button", name="Ask both").click()
        expect(page.get_by_text("The question has 0 letters. Write 1 to 2,000.")).to_be_visible(timeout=180_000)
