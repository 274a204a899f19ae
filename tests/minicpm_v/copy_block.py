"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.minicpm_v import convert
from notebooks.minicpm_v.data import held_out

PRINTS = r"^\d$"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    picture, _ = held_out("count", 1)[0]
    picture.save(scratch / "picture.png")
    yield {"path/to/model": str(convert.prepare("tiny", "INT8")), "path/to/picture.png": str(scratch / "picture.png")}
