"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.llm_distributed import convert

PRINTS = r"^rank 0 holds .* MB\nrank 1 holds .* MB\n\[.*\]$"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    yield {"path/to/shares": str(convert.prepare()[0].parent)}
