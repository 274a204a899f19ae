"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openvino as ov

from notebooks.dynamic_shapes.convert import to_ir

PRINTS = r"^12 \(1, 768\)\n45 \(1, 2880\)\n300 \(1, 19200\)\n3 requests, 3 hits"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    ov.save_model(to_ir("vocoder"), scratch / "vocoder.xml")
    yield {"path/to/model.xml": str(scratch / "vocoder.xml")}
