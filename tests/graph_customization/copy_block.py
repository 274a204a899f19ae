"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.graph_customization import convert

PRINTS = r"InsertSlice: changed[^$]*Paris"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    yield {"path/to/model": str(convert.prepare("tiny", "FP16"))}
