"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from notebooks.janus_pro import convert
from notebooks.janus_pro.data import held_out

PRINTS = r"^\d$"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    picture, _ = held_out("count", 1)[0]
    picture.save(scratch / "picture.png")
    yield {"path/to/model": str(convert.prepare("tiny", "INT8")), "path/to/picture.png": str(scratch / "picture.png")}
    with Image.open(scratch.parent / "drawing.png") as drawing:
        assert drawing.size == (96, 96)
