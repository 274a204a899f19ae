"""What the block to copy needs and prints; tests/test_copy_blocks.py runs it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notebooks.rag_serving import convert
from notebooks.rag_serving.pipeline import database

PRINTS = r"^\[1\] flat\.txt\n(.|\n)*4711"


@contextmanager
def needs(scratch: Path) -> Iterator[dict[str, str]]:
    embedder, llm = convert.prepare()
    with tempfile.TemporaryDirectory(prefix="rag-") as folder:  # see `cluster` in conftest.py
        places = {"path/to/embedder": embedder, "path/to/llm": llm, "path/to/database": Path(folder) / "data"}
        yield {place: str(path) for place, path in places.items()}
        database.stop(Path(folder) / "data")
