"""The demo: its functions, over gradio_client, and in a real browser, with a small random checkpoint."""

import re
from pathlib import Path

import numpy as np
import pytest
from gradio_client import Client, handle_file
from PIL import Image

from notebooks.janus_pro import demo
from notebooks.janus_pro.pipeline import Timings

SPEED = re.compile(r"^(\d+) tokens?.*, the first after \d+\.\d\d s")


@pytest.fixture(scope="module", autouse=True)
def in_its_place(janus):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_janus", lambda model, device: janus)
        patch.setattr(demo, "MAX_ANSWER_TOKENS", 8)
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A picture, and a file that is none."""
    folder = tmp_path_factory.mktemp("photos")
    Image.effect_noise((90, 60), 90).save(folder / "photo.png")
    (folder / "broken.png").write_bytes((folder / "photo.png").read_bytes()[:60])
    return folder


@pytest.fixture(scope="module")
def address(serve_demo):
    return serve_demo(demo.make_demo())


def test_an_answer_comes_in_pieces(janus, photos):
    photo = str(photos / "photo.png")
    *_, (answer, reasoning, told) = demo.answering(janus, photo, "What is it?")
    assert answer == janus.understand(photo, "What is it?", max_new_tokens=8).text and SPEED.match(told)
    assert reasoning == ""


def test_reasoning_is_shown_apart_from_the_answer(janus, photos, monkeypatch):
    photo = str(photos / "photo.png")
    text = janus.understand(photo, "What is it?", max_new_tokens=8).text
    monkeypatch.setattr(janus, "answer_separator", text[2])
    *before, (answer, reasoning, _) = demo.answering(janus, photo, "What is it?")
    assert (reasoning, answer) == (text.rpartition(text[2])[0], text.rpartition(text[2])[2])
    assert {step[0] for step in before} <= {""}


def test_a_drawing_appears_row_by_row(janus):
    steps = list(demo.drawing(janus, "a red ball", 3, 5.0))
    (shown, tokens, told), expected = steps[-1], janus.draw("a red ball", 3, n=demo.DRAWINGS)
    assert SPEED.match(told)[1] == "16" and tokens.width > 4 * tokens.height
    for whole, drawn in zip(shown, expected, strict=True):
        assert whole.size == (256, 256)
        assert np.array_equal(np.asarray(whole.resize(drawn.size, Image.Resampling.NEAREST)), np.asarray(drawn))
    rows = [int(re.fullmatch(r"row (\d) of 4", told)[1]) for *_, told in steps[:-1]]
    assert rows == sorted(set(rows)) and max(rows, default=0) < 4  # the whole drawing comes once, with the speed


def test_rows_are_shown_while_the_model_draws(janus, monkeypatch):
    """The pictures are made in the drawing's own thread; from another one they would wait for its end."""
    monkeypatch.setattr("utils.demo.UPDATE_INTERVAL_S", 0.001)
    seen = []
    draw = janus.draw_tokens

    def slowly(prompt, seed, guidance, n, progress):
        def listen(tokens):
            progress(tokens)
            if tokens.shape[1] == 4:
                for _ in range(5000):  # until the page has shown a row, at most 5 s
                    if seen:
                        break
                    demo.threading.Event().wait(0.001)

        return draw(prompt, seed, guidance, n, progress=listen)

    monkeypatch.setattr(janus, "draw_tokens", slowly)
    for step in demo.drawing(janus, "a red ball", 3, 5.0):
        seen.append(step[2])
    assert seen[0] == "row 1 of 4"


def test_the_model_stops_when_the_visitor_leaves(janus, photos, monkeypatch):
    monkeypatch.setattr(demo, "MAX_ANSWER_TOKENS", 1000)
    monkeypatch.setattr("utils.demo.UPDATE_INTERVAL_S", 0.001)
    answering = demo.answering(janus, str(photos / "photo.png"), "What is it?")
    next(answering)
    answering.close()
    assert janus.timings.finish_reason in ("stopped", "stop") and janus.timings.generated_tokens < 400
    left = demo.threading.Event()
    left.set()
    stopped = []

    def work(left):
        left.wait()
        stopped.append(True)

    waiting = demo.run_in_background(work, lambda: 1)
    next(waiting)
    waiting.close()
    assert stopped == [True]


def test_what_is_missing_or_too_much_is_a_sentence(janus, photos):
    photo = str(photos / "photo.png")
    for path, asked, sentence in (
        (None, "What?", "There is no picture yet"),
        (photo, " ", "The question is empty"),
        (photo, "x" * 2001, "question has 2001 characters; up to 2000 are read"),
        (str(photos / "broken.png"), "What?", "broken.png cannot be read as a picture"),
    ):
        with pytest.raises(ValueError, match=sentence):
            list(demo.answering(janus, path, asked))
    for asked, seed, sentence in (
        ("", 0, "The prompt is empty"),
        ("a ball", None, "The seed is empty"),
        ("x" * 2001, 0, "sentence has 2001 characters"),
        ("a ball", -1, "seed is -1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            list(demo.drawing(janus, asked, seed, 5.0))


def test_the_speed_is_told_in_words():
    timings = Timings(first_token_s=1.0, last_token_s=3.0, generated_tokens=5, finish_reason="length")
    timings.notes.append("It is animated.")
    assert demo.about(timings) == (
        "5 tokens, 2 tokens/s, the first after 1.00 s; cut off at the longest answer. It is animated."
    )
    single = Timings(first_token_s=1.0, generated_tokens=1, finish_reason="stop")
    assert demo.about(single) == "1 token, the first after 1.00 s."


def test_a_client_gets_answers_drawings_and_sentences(address, photos):
    client = Client(address, verbose=False)
    *_, told = client.predict(handle_file(photos / "photo.png"), "What is it?", api_name="/ask")
    assert SPEED.match(told)
    *drawn, tokens, told = client.predict("a red ball", 3, 5, api_name="/draw")
    assert [Image.open(path).size for path in drawn] == [(256, 256)] * 4
    assert Image.open(tokens).width > 500 and SPEED.match(told)[1] == "16"
    with pytest.raises(Exception, match="cannot be read as a picture"):
        client.predict(handle_file(photos / "broken.png"), "What?", api_name="/ask")
    with pytest.raises(Exception, match="The prompt is empty"):
        client.predict(" ", 0, 5, api_name="/draw")


def test_a_visitor_sees_answered_examples_then_asks_and_draws(address, photos, visit):
    from playwright.sync_api import expect

    with visit(address, height=1500) as page:
        drawings = page.locator(".drawing img:visible")
        expect(drawings).to_have_count(4, timeout=180_000)  # without a click
        expect(page.get_by_label("Speed").first).to_have_value(SPEED, timeout=180_000)
        page.get_by_role("tab", name="Ask").click()
        speed = page.get_by_label("Speed").locator("visible=true")
        expect(speed).to_have_value(SPEED, timeout=180_000)
        question = page.get_by_label("Question").locator("visible=true")
        expect(question).to_have_value(demo.questions()[0][1])

        page.get_by_role("tab", name="Draw").click()
        page.get_by_label("What to draw").fill("a red ball")
        page.get_by_role("button", name="Draw", exact=True).click()
        expect(speed).to_have_value(re.compile("^row "), timeout=180_000)
        expect(speed).to_have_value(SPEED, timeout=180_000)
        page.get_by_role("button", name="Ask about this drawing").nth(1).click()
        expect(question).to_have_value(demo.ABOUT_A_DRAWING, timeout=180_000)
        expect(page.get_by_label("Answer")).not_to_have_value("", timeout=180_000)

        question.fill(" ")
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.get_by_text("The question is empty").first).to_be_visible(timeout=180_000)
