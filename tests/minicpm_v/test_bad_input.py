"""What is wrong with a picture or a question is handled, told in a note, or said in a sentence."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from notebooks.minicpm_v.pipeline import Turn, VisionChat, open_picture
from utils.models.llm import FP32_PROPERTIES

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


@pytest.fixture(scope="module")
def chat(ir_2_6) -> VisionChat:
    return VisionChat(ir_2_6, **FP32_PROPERTIES)


def saved(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


def test_a_missing_file_is_a_sentence(chat, tmp_path):
    with pytest.raises(ValueError, match=r"none\.png is not there\. Correct its name"):
        chat.ask(tmp_path / "none.png", "What is it?")


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "tiff"])
def test_a_file_cut_short_is_a_sentence(chat, tmp_path, suffix):
    noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)
    path = saved(tmp_path / f"a.{suffix}", Image.fromarray(noise))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=rf"a\.{suffix} cannot be read as a picture\. Is it whole\?"):
        chat.ask(path, "What is it?")


def test_what_is_neither_file_nor_picture_is_a_sentence(chat):
    with pytest.raises(ValueError, match="A picture is a PIL image or the name of a file, not a ndarray"):
        chat.ask([np.zeros((4, 4, 3), np.uint8)], "What is it?")


@pytest.mark.parametrize("size", [(101, 1), (20, 3000)])
def test_too_long_and_thin_is_a_sentence(chat, size):
    with pytest.raises(ValueError, match=f"has {size[0]} x {size[1]} pixels: that is too long and thin"):
        chat.ask(Image.new("RGB", size), "What is it?")


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (300, 3), (13, 15)])
def test_small_and_thin_pictures_are_answered(chat, size):
    assert chat.ask(Image.new("RGB", size, BLUE), "What is it?", max_new_tokens=3)
    assert chat.timings.slices >= 1


def test_of_an_animation_the_first_frame_is_taken_and_that_is_told(chat, tmp_path):
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLUE)]
    for suffix in ("gif", "webp", "png"):
        path = saved(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:], lossless=True)
        opened, notes = open_picture(path)
        assert opened.getpixel((5, 5)) == RED
        assert notes == [f"a.{suffix} is animated: of its 3 frames the first one is taken."]
    chat.ask([tmp_path / "a.gif", frames[1]], "What is it?", max_new_tokens=1)
    assert chat.timings.notes == ["a.gif is animated: of its 3 frames the first one is taken."]
    chat.ask(frames[1], "What is it?", max_new_tokens=1)
    assert chat.timings.notes == []


@pytest.mark.parametrize("question", ["", "  \n", None])
def test_an_empty_question_is_a_sentence(chat, question):
    with pytest.raises(ValueError, match="The question is empty. Ask something"):
        chat.ask(None, question)


def test_marks_of_pictures_are_no_text(chat):
    history = []
    for question in ("What is <image>?", "<unk>", "<slice>"):
        with pytest.raises(ValueError, match="The text holds <.*>, by which the model knows pictures"):
            chat.ask(None, question, history)
    with pytest.raises(ValueError, match="The text holds </image>"):
        chat.ask(None, "And?", [Turn("What?", "</image>")])
    assert history == []


def test_a_conversation_that_does_not_fit_is_a_sentence(chat):
    history = []
    chat.ask(None, "Hello.", history, max_new_tokens=4)
    with pytest.raises(ValueError, match=r"has \d{4} tokens with this question and its pictures, the model reads 2048"):
        chat.ask(None, "a" * 2100, history, max_new_tokens=4)
    assert len(history) == 1
    chat.ask(None, "Still there?", history, max_new_tokens=4)
    assert chat.timings.cached_tokens > 0 and len(history) == 2


def test_an_answer_ends_where_the_context_does(chat):
    ids = len(chat._token_ids(chat._prompt([Turn("a", "")])))
    chat.ask(None, "a" * (2048 - ids - 2), max_new_tokens=50)
    assert chat.timings.generated_tokens <= 3 and chat.timings.prompt_tokens + chat.timings.generated_tokens <= 2048


def test_an_answer_takes_a_token(chat):
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        chat.ask(None, "Hello.", max_new_tokens=0)
