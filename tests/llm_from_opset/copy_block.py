"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.llm_from_opset import convert

PRINTS = r"The capital of France is Paris"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    yield {"path/to/checkpoint": str(convert.checkpoint_folder())}
