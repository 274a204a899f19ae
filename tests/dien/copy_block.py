"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.dien import convert

PRINTS = r"^0\.\d+ 0\.\d+$"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    yield {"path/to/model": str(convert.prepare("tiny", "FP32").parent)}
