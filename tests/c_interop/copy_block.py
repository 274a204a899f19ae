"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.c_interop import network

PRINTS = r"^hello\n5 tokens: length$"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    yield {"path/to/model": str(network.save_recitation(scratch / "model", [*b"hello"]))}
