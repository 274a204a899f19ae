"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openvino as ov

from notebooks.sdpa_enabling.convert import to_ir
from notebooks.sdpa_enabling.network import Attention

PRINTS = r"2 changed[^$]*1 changed: MatMul[^$]*^1 fused$"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    ov.save_model(to_ir(Attention("masked_fill")), scratch / "layer.xml")
    yield {"path/to/model.xml": str(scratch / "layer.xml")}
