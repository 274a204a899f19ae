"""What is wrong with a picture, a prompt, a number or a folder is handled, told in a note, or said in a sentence."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from notebooks.janus_pro import pipeline
from notebooks.janus_pro.pipeline import Janus, open_picture, preprocess

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
ASKED = "What is it?"


def saved(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


def test_a_missing_file_and_another_kind_of_thing_are_sentences(janus, tmp_path):
    with pytest.raises(ValueError, match=r"none\.png is not there\. Correct its name"):
        janus.understand(tmp_path / "none.png", ASKED)
    for image, kind in ((None, "NoneType"), (np.zeros((4, 4, 3), np.uint8), "ndarray")):
        with pytest.raises(ValueError, match=f"A picture is a PIL image or the name of a file, not a {kind}"):
            janus.understand(image, ASKED)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "tiff"])
def test_a_file_cut_short_is_a_sentence(tmp_path, suffix):
    noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)
    path = saved(tmp_path / f"a.{suffix}", Image.fromarray(noise))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=rf"a\.{suffix} cannot be read as a picture\. Is it whole\?"):
        open_picture(path)


@pytest.mark.parametrize("size", [(101, 1), (20, 3000)])
def test_too_long_and_thin_is_a_sentence(size):
    with pytest.raises(ValueError, match=f"has {size[0]} x {size[1]} pixels: that is too long and thin"):
        open_picture(Image.new("RGB", size))


@pytest.mark.parametrize(("size", "seen"), [((1, 1), (64, 64)), ((1, 40), (14, 64)), ((300, 3), (64, 14))])
def test_small_and_thin_pictures_are_seen_in_the_middle(janus, size, seen):
    pixels = preprocess(Image.new("RGB", size, BLUE), 64)
    blue = np.abs(pixels[0] - np.float32([-1, -1, 1])[:, None, None]).max(0) < 1e-6
    rows, columns = np.flatnonzero(blue.any(1)), np.flatnonzero(blue.any(0))
    assert blue.sum() == seen[0] * seen[1] and (len(columns), len(rows)) == seen
    assert rows[0] == (64 - seen[1]) // 2 and columns[0] == (64 - seen[0]) // 2
    assert np.allclose(pixels[0][:, ~blue], (127 / 255 - 0.5) / 0.5)
    assert janus.understand(Image.new("RGB", size, BLUE), ASKED, max_new_tokens=2) is not None


def test_of_an_animation_the_first_frame_is_taken_and_that_is_told(janus, tmp_path):
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLUE)]
    for suffix in ("gif", "webp", "png"):
        path = saved(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:], lossless=True)
        opened, notes = open_picture(path)
        assert opened.getpixel((5, 5)) == RED
        assert notes == [f"a.{suffix} is animated: of its 3 frames the first one is taken."]
    janus.understand(tmp_path / "a.gif", ASKED, max_new_tokens=1)
    assert janus.timings.notes == ["a.gif is animated: of its 3 frames the first one is taken."]


@pytest.mark.parametrize("text", ["", "  \n", None])
def test_nothing_said_is_a_sentence(janus, text):
    with pytest.raises(ValueError, match="The question is empty. Ask something"):
        janus.understand(Image.new("RGB", (4, 4)), text)
    with pytest.raises(ValueError, match="The prompt is empty. Say what to draw"):
        janus.draw(text)


@pytest.mark.parametrize("tag", pipeline.IMAGE_TOKENS)
def test_marks_of_pictures_are_no_text(janus, tag):
    with pytest.raises(ValueError, match=f"The question holds {tag}, by which the model knows pictures"):
        janus.understand(Image.new("RGB", (4, 4)), f"What is {tag}?")
    with pytest.raises(ValueError, match=f"The prompt holds {tag}, by which"):
        janus.draw(tag)


def test_what_does_not_fit_is_a_sentence(janus):
    with pytest.raises(ValueError, match=r"are \d{3} tokens in the question and its picture; the model reads 512"):
        janus.understand(Image.new("RGB", (4, 4)), "a" * 500)
    with pytest.raises(ValueError, match=r"are 5\d\d tokens in the prompt and the drawing; the model reads 512"):
        janus.draw("a" * 490)


def test_an_answer_ends_where_the_context_does(janus):
    janus.understand(Image.new("RGB", (4, 4)), "a", max_new_tokens=1)
    room = 512 - janus.timings.prompt_tokens
    janus.understand(Image.new("RGB", (4, 4)), "a" * room, max_new_tokens=50)
    assert janus.timings.prompt_tokens == 511 and janus.timings.generated_tokens <= 2


def test_the_longest_prompt_is_drawn(janus):
    janus.draw_tokens("a")
    longest = "a" * (1 + 512 - 15 - janus.timings.prompt_tokens)  # the last of 16 tokens is not read
    janus.draw_tokens(longest)
    assert janus.timings.prompt_tokens + 15 == 512
    with pytest.raises(ValueError, match="There are 513 tokens in the prompt"):
        janus.draw_tokens(longest + "a")


@pytest.mark.parametrize("most", [0, -1, 1.5, True, None])
def test_an_answer_takes_a_token(janus, most):
    with pytest.raises(ValueError, match="max_new_tokens is .*: an answer takes 1 or more"):
        janus.understand(Image.new("RGB", (4, 4)), ASKED, max_new_tokens=most)


@pytest.mark.parametrize("name", ["guidance", "temperature"])
@pytest.mark.parametrize("value", [-1, -0.01, 101, math.nan, math.inf, "5", [5]])
def test_numbers_that_make_no_sense_are_sentences(janus, name, value):
    with pytest.raises(ValueError, match=f"{name} is .*: give a number from 0 to 100"):
        janus.draw("a ball", **{name: value})


def test_numbers_of_numpy_are_numbers(janus):
    given = janus.draw_tokens("a ball", np.int64(2), np.float32(3), np.int32(1), temperature=np.float64(1))
    assert given.tolist() == janus.draw_tokens("a ball", 2, 3.0).tolist()


@pytest.mark.parametrize(("name", "told"), [("seed", "a whole number from 0 on"), ("n", "the number of drawings")])
@pytest.mark.parametrize("value", [-1, 1.5, "1", None, True])
def test_counts_that_make_no_sense_are_sentences(janus, name, told, value):
    with pytest.raises(ValueError, match=f"{name} is .*: give {told}"):
        janus.draw("a ball", **{name: value})


def test_no_drawings_are_a_sentence(janus):
    with pytest.raises(ValueError, match="n is 0: give the number of drawings, 1 or more"):
        janus.draw("a ball", n=0)


def test_more_drawings_than_memory_are_told_before(janus, monkeypatch):
    janus.draw_tokens("a ball")
    one = 2 * (janus.timings.prompt_tokens + 15) * janus._cache_bytes / 1e9
    monkeypatch.setattr(janus, "cache_gb", 2.5 * one)
    assert len(janus.draw_tokens("a ball", n=2)) == 2
    monkeypatch.setattr(janus, "read", lambda *_: pytest.fail("began to draw"))
    for n in (3, 10**12):
        with pytest.raises(ValueError, match=f"{n} drawings side by side take up to .* GB .*Draw fewer at a time"):
            janus.draw("a ball", n=n)


@pytest.mark.parametrize("tokens", [[[0] * 17], [[96]], [[-1]], [0, 1], [[0.5]]])
def test_tokens_that_are_none_are_a_sentence(janus, tokens):
    with pytest.raises(ValueError, match="Tokens are n rows of up to 16 whole numbers from 0 to 95"):
        janus.decode(np.array(tokens))


def test_another_folder_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="has no openvino_vision_model.xml, .*janus.json. Give the folder that"):
        Janus(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("janus.json", b"{"),
        ("janus.json", b"{}"),
        ("janus.json", b"[]"),
        ("openvino_language_model.xml", b"<net"),
        ("openvino_language_model.bin", b""),
        ("openvino_image_decoder_model.bin", b"\0" * 10),
        ("openvino_tokenizer.xml", b"hello"),
    ],
)
def test_a_damaged_folder_is_a_sentence(ir, tmp_path, name, content):
    folder = shutil.copytree(ir, tmp_path / "damaged")
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged holds a damaged file \(.+\)\. Convert the model again"):
        Janus(folder)
