"""Ingestion of files, by this process or by several workers on Ray Data, on one machine or on many.

Each worker is a process with its own embedding model and its own connections to the one database, which makes this
safe: a document is written in one transaction, and one that is there already is not embedded again. Ray starts another
worker in place of one that died, and repeats its batch. A run that was stopped goes on when it is started again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from notebooks.rag_serving.pipeline import DatabaseAway, Retriever, read_text

BATCH = 8  # files that a worker takes at a time
BAD_FILE = (ValueError, FileNotFoundError, IsADirectoryError, PermissionError)


class Outcome(TypedDict):
    """source: the name of a document, which is its file's path. status: what `Retriever.ingest` returned, "" after an
    error. error: why the file was not written, else ""."""

    source: str
    status: str
    error: str


def here(files: Sequence[Path], retriever: Retriever) -> Iterator[Outcome]:
    """Write text files in this process, one after the other. Raises DatabaseAway."""
    for file in files:
        yield _written(retriever, str(file), file, BAD_FILE)


def by_workers(files: Sequence[Path], make: Callable[[], Retriever], workers: int = 2) -> Iterator[Outcome]:
    """Write text files, at least one, on the cluster that this process is connected to (`utils.ray_cluster`).

    make: called in each worker, to which it is sent. The outcomes of a batch come when it is done, in any order. While
    the database is away, files have errors. On several machines, all must see the files and the database.
    """
    import ray  # takes seconds

    from utils.ray_cluster.cluster import CPUS

    rows = [{"source": str(file), "path": str(Path(file).resolve())} for file in files]
    workers = min(workers, len(rows))
    batch = min(BATCH, -(-len(rows) // workers))  # each worker has one
    blocks = -(-len(rows) // batch)  # a block is what Ray Data gives to a worker at a time
    dataset = ray.data.from_items(rows, override_num_blocks=blocks).map_batches(
        Worker,
        fn_constructor_args=(make,),
        batch_size=batch,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=CPUS,
    )
    yield from dataset.iter_rows()


class Worker:
    """What an actor of Ray Data runs; make: returns its `Retriever`."""

    def __init__(self, make: Callable[[], Retriever]) -> None:
        self.retriever = make()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Write a batch of files, columns "source" and "path"; returns the columns of `Outcome`."""
        found = [
            _written(self.retriever, source, Path(path), (*BAD_FILE, DatabaseAway))
            for source, path in zip(batch["source"].tolist(), batch["path"].tolist(), strict=True)
        ]
        return {name: np.array([own[name] for own in found]) for name in Outcome.__annotations__}


def _written(retriever: Retriever, source: str, path: Path, expected: tuple[type[Exception], ...]) -> Outcome:
    try:
        return Outcome(source=source, status=retriever.ingest(source, read_text(path.read_bytes(), source)), error="")
    except expected as error:
        return Outcome(source=source, status="", error=str(error))
