"""The demo: its function, over gradio_client, and in a real browser. Runs on the real tiny model."""

import pytest
from gradio_client import Client

from notebooks.graph_customization import demo
from utils.demo import start

SLICE, GREEDY, INT4 = demo.CUSTOMIZATIONS
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def address():
    blocks = demo.make_demo()
    yield start(blocks)
    blocks.close()


def last(generator):
    *_, final = generator
    return final


@pytest.mark.parametrize("choice", [SLICE, GREEDY])
def test_customization_does_not_change_the_answer(choice):
    (base, custom), rows, report, figure = last(demo.answer(QUESTION, choice, 16))
    assert "Paris" in base
    assert custom == base
    assert [row[0] for row in rows] == ["as exported", "customized"]
    assert all(row[1] == 37 and row[2] > 0 and row[3] > 0 for row in rows)
    assert "InsertSlice: changed" in report
    assert any("Slice" in text.get_text() for text in figure.axes[1].texts)


def test_answers_grow_while_they_are_made():
    lengths = [len(texts[0]) for texts, *_ in demo.answer(QUESTION, SLICE, 8)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


@pytest.mark.parametrize(
    ("prompt", "choice", "message"),
    [("  ", SLICE, "The prompt is empty"), ("Hi", "Nothing", "Choose one of"), ("word " * 4000, SLICE, "Shorten it")],
)
def test_bad_input_is_an_error(prompt, choice, message):
    with pytest.raises(ValueError, match=message):
        last(demo.answer(prompt, choice, 8))


def test_a_client_gets_answers_and_sentences(address):
    client = Client(address, verbose=False)
    updates = list(client.submit(QUESTION, SLICE, 16, api_name="/compare"))
    base, custom, timing, report, _ = updates[-1]
    assert "Paris" in base and custom == base
    assert len(timing["data"]) == 2 and "InsertSlice: changed" in report
    assert [i for i, update in enumerate(updates) if "plot" in update[4]] == [0], "the picture is sent once"
    with pytest.raises(Exception, match="The prompt is empty"):
        client.predict("", SLICE, 16, api_name="/compare")


def test_a_visitor_sees_answers_timing_and_graph(address, visit):
    from playwright.sync_api import expect

    with visit(address, height=1400) as page:
        page.get_by_role("button", name="Compare").click()
        expect(page.get_by_label("Customized")).to_have_value("The capital of France is Paris.", timeout=60_000)
        expect(page.get_by_role("img").last).to_be_visible(timeout=30_000)
        expect(page.get_by_text("customized", exact=True).first).to_be_visible(timeout=30_000)
        page.get_by_label("Prompt").fill(" ")
        page.get_by_role("button", name="Compare").click()
        expect(page.get_by_text("The prompt is empty: type a question first.")).to_be_visible(timeout=30_000)
