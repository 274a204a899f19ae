"""The demo in a real browser, with the real models and a database of its own."""

import re
from dataclasses import replace

import pytest

from notebooks.rag_serving import demo
from notebooks.rag_serving.pipeline import Passage, database


@pytest.fixture(scope="module")
def address(serve_demo, cluster):
    return serve_demo(demo.make_demo(url=database.embedded(cluster, "demo")))


def passage(text: str) -> Passage:
    return Passage("<b>.txt", 0, 0, text, 0.0328, 0.71, 1, None, None)


def test_sources_are_numbered_escaped_and_marked():
    page = demo.sources_html([passage("Wine <i>from</i> Italy & France")], [[(15, 26)]])
    assert "[1] &lt;b&gt;.txt" in page and "<i>" not in page
    assert re.search(r"<mark [^>]*>/i&gt; Italy &amp;</mark>|<mark [^>]*>[^<]*Italy[^<]*</mark>", page)
    assert "from memory" in demo.sources_html([])


def test_scores_of_each_stage_are_shown():
    row = ["[1]", "<b>.txt", "0.0328", "0.710", "1", "–", "–"]
    assert demo.scores([passage("text")]) == [[*row, "–"]]
    reranked = replace(passage("text"), rerank_score=0.5432)
    assert demo.scores([reranked]) == [[*row, "0.543"]]
    assert len(demo.COLUMNS) == 8


def test_a_visitor_finds_an_answer_asks_and_switches_retrieval_off(address, visit):
    from playwright.sync_api import expect

    with visit(address, height=1700) as page:
        answer = page.get_by_label("Answer", exact=True)
        expect(page.get_by_label("Time")).to_have_value(re.compile("whole answer after"), timeout=180_000)
        expect(answer).to_have_value(re.compile("Italy"))
        expect(page.locator("mark").first).to_be_visible()
        expect(page.get_by_text("[1] sklearn/wine_data.rst", exact=True).first).to_be_visible()
        page.get_by_label("Question").fill(" ")
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.get_by_text("The question is empty. Type one.")).to_be_visible(timeout=180_000)
        page.get_by_label("Question").fill("Which country do the wines come from?")
        page.get_by_label("With retrieval").uncheck()
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.get_by_text("No passages: the model answers from memory.")).to_be_visible(timeout=180_000)


def test_a_visitor_gives_a_document_and_asks_about_it(address, visit, tmp_path):
    from playwright.sync_api import expect

    (tmp_path / "flat.txt").write_text("The flat of the Miller family has number 4711.", encoding="utf-8")
    with visit(address, height=1700) as page:
        expect(page.get_by_label("Time")).to_have_value(re.compile("whole answer after"), timeout=180_000)
        page.get_by_test_id("file-upload").first.set_input_files(tmp_path / "flat.txt")
        documents = page.get_by_label("Documents")
        expect(documents).to_have_value("flat.txt: new. Ask about it.", timeout=180_000)
        page.get_by_label("Question").fill("Which number has the flat of the Miller family?")
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.get_by_label("Answer", exact=True)).to_have_value(re.compile("4711"), timeout=180_000)
        page.get_by_role("button", name="Remove my documents").click()
        expect(documents).to_have_value("Removed: flat.txt.", timeout=180_000)


def test_a_file_that_is_no_text_is_a_message(address, visit, tmp_path):
    from playwright.sync_api import expect

    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\x00")
    with visit(address, height=1700) as page:
        expect(page.get_by_label("Time")).to_have_value(re.compile("whole answer after"), timeout=180_000)
        page.get_by_test_id("file-upload").first.set_input_files(tmp_path / "picture.txt")
        expect(page.get_by_text("picture.txt is no text in UTF-8")).to_be_visible(timeout=180_000)
