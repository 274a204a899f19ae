"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.deepseek_serving import convert
from notebooks.deepseek_serving.server import repository, serve

PRINTS = r"Paris"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    models = repository.write(scratch / "models", "smollm2", convert.prepare("tiny", "INT4"))
    with serve(models, kind="local", quiet=True) as server:
        yield {"http://127.0.0.1:8000": server.url}
