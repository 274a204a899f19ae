"""The demo: its function, over gradio_client, and in a real browser. Runs on the real tiny model."""

import pytest
from gradio_client import Client

from notebooks.graph_customization import demo

SLICE, GREEDY, INT4 = demo.CUSTOMIZATIONS
QUESTION = "What is the capital of France?"
VOCABULARY_BYTES = 4 * 49_152  # of the logits of one token


@pytest.fixture(scope="module")
def models():
    return demo.Models()


@pytest.fixture(scope="module")
def address(serve_demo):
    return serve_demo(demo.make_demo())


OUTPUT_MB = {SLICE: round(VOCABULARY_BYTES / 1e6, 3), GREEDY: 0}  # 8 bytes


@pytest.mark.parametrize("choice", [SLICE, GREEDY])
def test_customization_does_not_change_the_answer(models, choice):
    (base, custom), rows, report, figure = list(demo.answer(QUESTION, choice, 16, models))[-1]
    assert "Paris" in base
    assert custom == base
    assert [row[0] for row in rows] == ["as exported", "customized"]
    assert all(row[1] == 37 and row[2] > 0 and row[4] > 0 for row in rows)
    assert [row[3] for row in rows] == [round(37 * VOCABULARY_BYTES / 1e6, 3), OUTPUT_MB[choice]]
    assert "InsertSlice: changed" in report
    assert any("Slice" in text.get_text() for text in figure.axes[1].texts)


def test_answers_grow_while_they_are_made(models):
    lengths = [len(texts[0]) for texts, *_ in demo.answer(QUESTION, SLICE, 8, models)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


@pytest.mark.parametrize(
    ("prompt", "choice", "message"),
    [("  ", SLICE, "The prompt is empty"), ("Hi", "Nothing", "Choose one of"), ("word " * 4000, SLICE, "Shorten it")],
)
def test_bad_input_is_an_error(models, prompt, choice, message):
    with pytest.raises(ValueError, match=message):
        list(demo.answer(prompt, choice, 8, models))


def test_better_weights_repair_an_answer_and_the_report_has_the_perplexities(models):
    (base, custom), _, report, _ = list(demo.answer(QUESTION, INT4, 16, models))[-1]
    assert custom == "The capital of France is Paris." != base
    assert report.splitlines()[1].startswith("InsertWeights: changed")
    assert "30.3 as exported, 28 with the better weights" in report


def test_folders_of_a_notebook_are_used(tmp_path):
    with pytest.raises(RuntimeError, match=tmp_path.name):
        demo.Models(folders={"FP16": tmp_path}).load(SLICE)


def test_the_curve_grows_up_to_the_longest_prompt(models):
    figures = list(demo.curve(SLICE, 100, models))
    lengths = [list(figure.axes[0].lines[0].get_xdata()) for figure in figures]
    assert lengths == [[16], [16, 64], [16, 64, 100]]
    memory = figures[-1].axes[1]
    assert list(memory.lines[0].get_ydata()) == [round(n * VOCABULARY_BYTES / 1e6, 3) for n in lengths[-1]]
    assert list(memory.lines[1].get_ydata()) == [OUTPUT_MB[SLICE]] * 3


def test_a_client_gets_answers_and_sentences(address):
    client = Client(address, verbose=False)
    updates = list(client.submit(QUESTION, SLICE, 16, api_name="/compare"))
    base, custom, timing, _, report, _ = updates[-1]
    assert "Paris" in base and custom == base
    assert len(timing["data"]) == 2 and "InsertSlice: changed" in report
    assert [i for i, update in enumerate(updates) if "plot" in update[5]] == [0], "the graph is sent once"
    assert sum("plot" in update[3] for update in updates) == 2, "the bars are sent after each answer"
    with pytest.raises(Exception, match="The prompt is empty"):
        client.predict("", SLICE, 16, api_name="/compare")


def test_a_visitor_finds_an_answered_example_and_asks_on(address, visit):
    from playwright.sync_api import expect

    with visit(address, height=2000) as page:
        for label in ("As exported", "Customized"):
            expect(page.get_by_label(label)).to_have_value("The girl in this story is Alice.", timeout=120_000)
        expect(page.locator("img")).to_have_count(3, timeout=180_000)  # bars, curves and graph
        expect(page.get_by_text("870", exact=True).last).to_be_visible(timeout=180_000)
        page.get_by_role("button", name="What is the capital of France?").click()
        expect(page.get_by_label("Prompt", exact=True)).to_have_value("What is the capital of France?")
        page.get_by_role("button", name="Compare").click()
        expect(page.get_by_label("Customized")).to_have_value("The capital of France is Paris.", timeout=180_000)
        expect(page.get_by_text("customized", exact=True).first).to_be_visible(timeout=180_000)
        page.get_by_label("Prompt", exact=True).fill(" ")
        page.get_by_role("button", name="Compare").click()
        expect(page.get_by_text("The prompt is empty: type a question first.")).to_be_visible(timeout=180_000)
