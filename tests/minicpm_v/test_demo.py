"""The demo: its functions, over gradio_client, and in a real browser, with a small random checkpoint.

Each column of the page, with slices and without, has a chat of its own.
"""

import re
from pathlib import Path

import gradio as gr
import pytest
from gradio_client import Client, handle_file
from PIL import Image

from notebooks.minicpm_v import demo
from notebooks.minicpm_v.pipeline import Answer, Timings, VisionChat
from tests.minicpm_v import small

SPEED = re.compile(
    r"^\d+ tokens?, .*the first after \d+\.\d\d s, of which \d+\.\d\d s for (\d+) pieces? of the picture"
)


@pytest.fixture(scope="module")
def chat(ir_2_6) -> VisionChat:
    """A random model, whose answers are noise."""
    return VisionChat(ir_2_6)


@pytest.fixture(scope="module", autouse=True)
def in_its_place(chat, ir_2_6):
    chats = {True: chat, False: VisionChat(ir_2_6)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_chat", lambda model, device, slicing: chats[slicing])
        patch.setattr(demo, "MAX_ANSWER_TOKENS", 8)
        yield


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A large picture in two halves, a small one, and a file that is none."""
    folder = tmp_path_factory.mktemp("pictures")
    large = Image.new("RGB", (3 * small.SIDE, 2 * small.SIDE), "red")
    large.paste("blue", (small.SIDE, 0, 3 * small.SIDE, 2 * small.SIDE))
    large.save(folder / "large.png")
    Image.new("RGB", (30, 20), "green").save(folder / "small.png")
    (folder / "broken.png").write_bytes((folder / "large.png").read_bytes()[:60])
    return folder


@pytest.fixture(scope="module")
def address(serve_demo):
    return serve_demo(demo.make_demo())


def test_the_slices_are_drawn_over_the_picture(pictures):
    path = str(pictures / "large.png")
    drawn, told = demo.look(path, True)
    assert told.startswith("The whole at ")
    assert f"and 6 slices of {small.SIDE} x {small.SIDE}." in told
    changed = [x for x in range(drawn.width) if drawn.getpixel((x, small.SIDE - 6)) not in ((255, 0, 0), (0, 0, 255))]
    assert {small.SIDE, 2 * small.SIDE} <= set(changed) and len(changed) < 8
    small_path = str(pictures / "small.png")
    whole, told = demo.look(small_path, True)
    assert "needs no slices" in told and whole.tobytes() == Image.open(small_path).tobytes()


def test_without_slices_the_overview_s_own_pixels_are_shown(chat, pictures):
    path = str(pictures / "large.png")
    seen, told = demo.look(path, False)
    width, height = chat.plan(path).overview
    assert told == f"Only the whole at {width} x {height} pixels."
    times = seen.width // width
    assert times > 1 and seen.size == (times * width, times * height) and max(seen.size) >= demo.HEIGHT_PX
    overview = Image.open(path).resize((width, height), Image.Resampling.BICUBIC)
    assert seen.resize((width, height), Image.Resampling.NEAREST).tobytes() == overview.tobytes()


def test_large_pictures_are_shown_smaller(pictures, monkeypatch):
    monkeypatch.setattr(demo, "MAX_SHOWN_PX", 60)
    assert demo.look(str(pictures / "large.png"), True)[0].size == (60, 40)


def test_an_answer_comes_in_pieces_and_is_remembered(chat, pictures):
    turns = []
    *earlier, (answer, told) = demo.stream(chat, str(pictures / "large.png"), "What is it?", turns)
    assert [turn.text for turn in turns] == [answer.text] and {speed for _, speed in earlier} == {""}
    assert SPEED.match(told)[1] == "7" and "kept" not in told
    *_, (more, told) = demo.stream(chat, None, "And now?", turns)
    assert [turn.text for turn in turns] == [answer.text, more.text] and "of the conversation were kept" in told
    *_, (_, told) = demo.stream(chat, str(pictures / "large.png"), "What is it?", [], slicing=False)
    assert SPEED.match(told)[1] == "1"


def test_the_model_stops_when_the_visitor_leaves(chat, pictures, monkeypatch):
    monkeypatch.setattr(demo, "MAX_ANSWER_TOKENS", 1000)
    turns = []
    answering = demo.stream(chat, str(pictures / "small.png"), "What is it?", turns)
    next(answering)
    answering.close()
    assert chat.timings.finish_reason in ("stopped", "stop") and chat.timings.generated_tokens < 1000


def test_what_is_missing_or_too_much_is_a_sentence(chat, pictures):
    for path, asked, sentence in (
        (None, "What?", "There is no picture yet"),
        (str(pictures / "small.png"), " ", "The question is empty"),
        (str(pictures / "small.png"), "x" * 2001, "has 2001 characters; up to 2000 are read"),
        (str(pictures / "broken.png"), "What?", "broken.png cannot be read as a picture"),
    ):
        turns = []
        with pytest.raises(ValueError, match=sentence):
            list(demo.stream(chat, path, asked, turns))
        assert turns == []


def test_the_speed_is_told_in_words():
    timings = Timings(
        image_s=0.5,
        first_token_s=1.0,
        total_s=2.0,
        slices=7,
        cached_tokens=9,
        generated_tokens=5,
        finish_reason="length",
    )
    timings.notes.append("It is animated.")
    assert demo.about(timings) == (
        "5 tokens, 4 tokens/s, the first after 1.00 s, of which 0.50 s for 7 pieces of the picture; 9 tokens of the "
        "conversation were kept; cut off at the longest answer. It is animated."
    )
    assert (
        demo.about(Timings(first_token_s=1.0, generated_tokens=1, finish_reason="stop"))
        == "1 token, the first after 1.00 s."
    )


def test_the_answer_stands_above_its_reasoning():
    answer = Answer("red star top: COIN", ":")
    first, second = demo.shown(answer, True)
    assert first == {"role": "assistant", "content": "COIN"}
    assert second["content"] == "red star top" and second["metadata"]["title"] == "Reasoning"
    assert demo.shown(answer, False) == [{"role": "assistant", "content": answer.text}]
    assert demo.shown(Answer("At 9:00."), True) == [{"role": "assistant", "content": "At 9:00."}]


def test_conversations_can_be_copied_but_not_shared():
    blocks = demo.make_demo()
    chats = [block for block in blocks.blocks.values() if isinstance(block, gr.Chatbot)]
    assert [chat.buttons for chat in chats] == 2 * [["copy", "copy_all"]]


def test_a_client_gets_answers_slices_and_sentences(address, pictures):
    client = Client(address, verbose=False)
    large, broken = handle_file(pictures / "large.png"), handle_file(pictures / "broken.png")
    _, told, _, whole = client.predict(large, api_name="/show")
    assert "and 6 slices" in told and whole.startswith("Only the whole")
    question, said, told, other, whole = client.predict(large, "What is it?", [], [], api_name="/respond")
    assert [message["role"] for message in said] == ["user", "assistant"] and question == ""
    assert (SPEED.match(told)[1], SPEED.match(whole)[1]) == ("7", "1") and len(other) == 2 and other != said
    _, said, told, other, whole = client.predict(large, "And now?", said, other, api_name="/respond")
    assert len(said) == len(other) == 4
    assert all("were kept" in speed and "pieces" not in speed for speed in (told, whole))
    with pytest.raises(Exception, match="cannot be read as a picture"):
        client.predict(broken, api_name="/show")
    with pytest.raises(Exception, match="The question is empty"):
        client.predict(large, " ", [], [], api_name="/respond")


def test_a_visitor_sees_an_answered_example_then_asks_about_an_own_picture(address, pictures, visit):
    from playwright.sync_api import expect

    with visit(address, height=1500) as page:
        with_slices, without = page.get_by_label("Speed with slices"), page.get_by_label("Speed without slices")
        expect(with_slices).to_have_value(SPEED, timeout=180_000)  # the example is answered when the page opens
        expect(without).to_have_value(SPEED, timeout=180_000)
        reads = page.get_by_label("What the model reads with slices")
        expect(reads).to_have_value(re.compile("and 9 slices of"), timeout=180_000)
        expect(page.get_by_text("under the orange heart").first).to_be_visible()

        page.get_by_role("button", name="New conversation").click()
        expect(with_slices).to_have_value("")
        page.get_by_label("Remove Image").first.click()
        page.get_by_label("Question", exact=True).fill("What is it?")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_text("There is no picture yet").first).to_be_visible(timeout=180_000)
        with page.expect_response("**/upload*"):
            page.locator("input[type=file]").first.set_input_files(pictures / "large.png")
        expect(reads).to_have_value(re.compile("and 6 slices of"), timeout=180_000)
        page.get_by_role("button", name="Ask").click()
        expect(with_slices).to_have_value(SPEED, timeout=180_000)
        expect(without).to_have_value(re.compile("for 1 piece of the picture"), timeout=180_000)
        expect(page.get_by_label("Question", exact=True)).to_have_value("")

        page.locator("table tbody tr, .gallery button").first.click()
        expect(page.get_by_label("Question", exact=True)).not_to_have_value("", timeout=180_000)
        expect(reads).to_have_value(re.compile("and 9 slices of"), timeout=180_000)
