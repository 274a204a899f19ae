"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openvino as ov

from tests.llm_methods.small import network

PRINTS = r"INT4 mixed 80 % \d+\.\d+ MB"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    ov.save_model(network(), scratch / "openvino_model.xml")
    yield {"path/to/model": str(scratch)}
