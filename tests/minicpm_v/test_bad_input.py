"""What is wrong with a picture or a question is handled, told in a note, or said in a sentence."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from notebooks.minicpm_v import pipeline
from notebooks.minicpm_v.pipeline import Turn, VisionChat, open_picture
from utils.llm import EXACT

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


@pytest.fixture(scope="module")
def chat(ir_2_6) -> VisionChat:
    return VisionChat(ir_2_6, **EXACT)


def saved(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp", "tiff"])
def test_pictures_are_read_from_usual_files(tmp_path, suffix):
    opened, notes = open_picture(saved(tmp_path / f"a.{suffix}", Image.new("RGB", (20, 10), RED)))
    assert (opened.mode, opened.size, notes) == ("RGB", (20, 10), [])
    assert np.abs(np.asarray(opened).astype(int) - RED).max() <= 6


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


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"\xff\xd8\xff" + b"\0" * 40])
def test_what_is_no_picture_is_a_sentence(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.png cannot be read as a picture"):
        open_picture(tmp_path / "a.png")


def declared(path: Path, width: int, height: int) -> Path:
    """A PNG of a few bytes that says it is this large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(9000, 9000), (100_000, 90_000)])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, size):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("unpacked"))
    with pytest.raises(ValueError, match=r"a\.png has .* pixels; up to 80 million are read\. Make it smaller"):
        open_picture(declared(tmp_path / "a.png", *size))


def test_a_picture_in_memory_has_the_same_limits(monkeypatch):
    monkeypatch.setattr(pipeline, "MOST_PIXELS", 2_000_000)
    with pytest.raises(ValueError, match="The picture has 2000 x 1001 pixels; up to 2 million"):
        open_picture(Image.new("L", (2000, 1001)))


@pytest.mark.parametrize("size", [(101, 1), (20, 3000)])
def test_too_long_and_thin_is_a_sentence(chat, size):
    with pytest.raises(ValueError, match=f"has {size[0]} x {size[1]} pixels: that is too long and thin"):
        chat.ask(Image.new("RGB", size), "What is it?")


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (300, 3), (13, 15)])
def test_small_and_thin_pictures_are_answered(chat, size):
    assert chat.ask(Image.new("RGB", size, BLUE), "What is it?", max_new_tokens=3)
    assert chat.figures.slices >= 1


def test_of_an_animation_the_first_frame_is_taken_and_that_is_told(chat, tmp_path):
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLUE)]
    for suffix in ("gif", "webp", "png"):
        path = saved(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:], lossless=True)
        opened, notes = open_picture(path)
        assert opened.getpixel((5, 5)) == RED
        assert notes == [f"a.{suffix} is animated: of its 3 frames the first one is taken."]
    chat.ask([tmp_path / "a.gif", frames[1]], "What is it?", max_new_tokens=1)
    assert chat.figures.notes == ["a.gif is animated: of its 3 frames the first one is taken."]
    chat.ask(frames[1], "What is it?", max_new_tokens=1)
    assert chat.figures.notes == []


def test_cmyk_becomes_rgb(tmp_path):
    opened, _ = open_picture(saved(tmp_path / "a.jpg", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95))
    assert np.abs(np.asarray(opened).astype(int) - RED).max() < 12


def test_16_bits_are_scaled_not_cut_off(tmp_path):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(4, 0)
    opened, _ = open_picture(saved(tmp_path / "a.png", Image.fromarray(ramp)))
    assert np.abs(np.asarray(opened)[0, :, 0].astype(int) - np.arange(256)).max() <= 1
    with pytest.raises(ValueError, match="holds floating-point numbers"):
        open_picture(Image.fromarray(ramp.astype(np.float32)))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path, mode):
    image = Image.new("RGBA", (8, 4), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 4, 4))
    opened, _ = open_picture(saved(tmp_path / "a.png", image.convert(mode)))
    assert opened.getpixel((1, 1)) == (0, 0, 0) and opened.getpixel((6, 1)) == (255, 255, 255)


def test_grey_palette_and_bitmap_become_rgb():
    for mode, colour in (("L", 200), ("1", 1), ("P", 0)):
        assert open_picture(Image.new(mode, (4, 4), colour))[0].mode == "RGB"


def test_a_photo_taken_sideways_is_turned(tmp_path):
    image = Image.new("RGB", (20, 10), RED)
    image.paste(BLUE, (0, 0, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by 90 degrees, clockwise
    opened, _ = open_picture(saved(tmp_path / "a.png", image, exif=exif))
    assert opened.size == (10, 20) and opened.getpixel((5, 2)) == BLUE and opened.getpixel((5, 17)) == RED


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
    assert chat.figures.kept > 0 and len(history) == 2


def test_an_answer_ends_where_the_context_does(chat):
    ids = len(chat._ids(chat._prompt([Turn("a", "")])))
    chat.ask(None, "a" * (2048 - ids - 2), max_new_tokens=50)
    assert chat.figures.generated <= 3 and chat.figures.read + chat.figures.generated <= 2048


def test_an_answer_takes_a_token(chat):
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        chat.ask(None, "Hello.", max_new_tokens=0)
