"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openvino as ov

from notebooks.arm import convert

PRINTS = r"in f32: largest difference 0\.000000, agrees$"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    ov.save_model(convert.gate(), scratch / "gate.xml", compress_to_fp16=False)
    yield {"path/to/model.xml": str(scratch / "gate.xml")}
