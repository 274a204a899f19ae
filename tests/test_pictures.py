"""What the notebooks about pictures accept as one: usual files, with notes and errors for what is wrong with them.

Each notebook has its own `open_picture`, so that its pipeline can be copied alone; a test holds them equal.
"""

import inspect
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from notebooks.janus_pro import pipeline as janus_pro
from notebooks.minicpm_v.pipeline import chat as minicpm_v

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def saved(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


@pytest.fixture(params=[janus_pro, minicpm_v], ids=["janus_pro", "minicpm_v"])
def pipeline(request):
    return request.param


@pytest.fixture
def open_picture(pipeline):
    return pipeline.open_picture


def test_there_is_one_source():
    assert inspect.getsource(janus_pro.open_picture) == inspect.getsource(minicpm_v.open_picture)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp", "tiff"])
def test_pictures_are_read_from_usual_files(open_picture, tmp_path, suffix):
    opened, notes = open_picture(saved(tmp_path / f"a.{suffix}", Image.new("RGB", (20, 10), RED)))
    assert (opened.mode, opened.size, notes) == ("RGB", (20, 10), [])
    assert np.abs(np.asarray(opened).astype(int) - RED).max() <= 6


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"\xff\xd8\xff" + b"\0" * 40])
def test_what_is_no_picture_is_a_sentence(open_picture, tmp_path, content):
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
def test_a_bomb_is_refused_before_it_is_unpacked(open_picture, tmp_path, monkeypatch, size):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("unpacked"))
    with pytest.raises(ValueError, match=r"a\.png has .* pixels; up to 80 million are read\. Make it smaller"):
        open_picture(declared(tmp_path / "a.png", *size))


def test_a_picture_in_memory_has_the_same_limits(pipeline, open_picture, monkeypatch):
    monkeypatch.setattr(pipeline, "MAX_PIXELS", 2_000_000)
    with pytest.raises(ValueError, match="The picture has 2000 x 1001 pixels; up to 2 million"):
        open_picture(Image.new("L", (2000, 1001)))


def test_cmyk_becomes_rgb(open_picture, tmp_path):
    opened, _ = open_picture(saved(tmp_path / "a.jpg", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95))
    assert np.abs(np.asarray(opened).astype(int) - RED).max() < 12


def test_16_bits_are_scaled_not_cut_off(open_picture, tmp_path):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(4, 0)
    opened, _ = open_picture(saved(tmp_path / "a.png", Image.fromarray(ramp)))
    assert np.abs(np.asarray(opened)[0, :, 0].astype(int) - np.arange(256)).max() <= 1
    with pytest.raises(ValueError, match="holds floating-point numbers"):
        open_picture(Image.fromarray(ramp.astype(np.float32)))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(open_picture, tmp_path, mode):
    image = Image.new("RGBA", (8, 4), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 4, 4))
    opened, _ = open_picture(saved(tmp_path / "a.png", image.convert(mode)))
    assert opened.getpixel((1, 1)) == (0, 0, 0) and opened.getpixel((6, 1)) == (255, 255, 255)


def test_grey_palette_and_bitmap_become_rgb(open_picture):
    for mode, colour in (("L", 200), ("1", 1), ("P", 0)):
        assert open_picture(Image.new(mode, (4, 4), colour))[0].mode == "RGB"


def test_a_photo_taken_sideways_is_turned(open_picture, tmp_path):
    image = Image.new("RGB", (20, 10), RED)
    image.paste(BLUE, (0, 0, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by 90 degrees, clockwise
    opened, _ = open_picture(saved(tmp_path / "a.png", image, exif=exif))
    assert opened.size == (10, 20) and opened.getpixel((5, 2)) == BLUE and opened.getpixel((5, 17)) == RED
