"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ollama_openvino.fakes import toy_ir

PRINTS = r"^unpacked: \['openvino_detokenizer.xml', 'openvino_model.xml', 'openvino_tokenizer.xml'\]$"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    yield {"path/to/model": str(toy_ir(scratch / "model"))}
