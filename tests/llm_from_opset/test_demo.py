"""The demo: its function, and in a real browser. Runs on the real tiny model."""

import pytest

from notebooks.llm_from_opset import demo


@pytest.fixture(scope="module")
def models():
    return demo.Models()


@pytest.fixture(scope="module")
def address(serve_demo):
    return serve_demo(demo.make_demo())


def test_precisions_decide_about_weights_and_the_answer_is_right(models):
    (text, rows, figure), (_, smaller, _) = (
        list(demo.answer(demo.QUESTIONS[0], attention, "INT4", 16, models))[-1] for attention in ("FP16", "INT8")
    )
    assert "Paris" in text and rows[0][:2] == ["FP16", "INT4"] and rows[0][4] == 37
    assert rows[0][3] > smaller[0][3] > 80 and all(value > 0 for value in rows[0][2:])
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert "RoPE" in labels and "u4 weights" in labels


@pytest.mark.parametrize(
    ("question", "attention", "message"),
    [(" ", "INT8", "question is empty"), ("Hi", "INT2", "Choose one of: FP16"), ("a " * 2000, "INT8", "Shorten it")],
)
def test_bad_input_is_an_error(models, question, attention, message):
    with pytest.raises(ValueError, match=message):
        list(demo.answer(question, attention, "INT4", 8, models))


def test_a_visitor_finds_an_answered_example_and_asks_on(address, visit):
    from playwright.sync_api import expect

    with visit(address, height=1300) as page:
        answer = page.get_by_role("textbox", name="Answer")
        expect(answer).to_have_value("The capital of France is Paris, France.", timeout=120_000)
        expect(page.locator("img")).to_have_count(1, timeout=180_000)
        page.get_by_role("textbox", name="Question").fill(" ")
        page.get_by_role("button", name="Build and ask").click()
        expect(page.get_by_text("The question is empty: type one first.")).to_be_visible(timeout=180_000)
