"""Ingestion by this process, and by one and two workers on Ray Data."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from notebooks.rag_serving import convert, data
from notebooks.rag_serving.pipeline.database import embedded, stop
from notebooks.rag_serving.server import database_folder, ingesting, retriever_of
from notebooks.rag_serving.server.process import worker_retriever
from utils import bench, report

RAY = "Ray Data: "  # of the notes that are measured here
HERE = "this process"
COUNTS = (1, 2)  # workers


def write_files(documents: Sequence[data.Document], folder: Path) -> list[Path]:
    """A text file for each document."""
    files = [folder / f"{document.source.replace('/', '_')}.txt" for document in documents]
    for file, document in zip(files, documents, strict=True):
        file.write_text(document.text, encoding="utf-8")
    return files


def measure(embedder: Path, database: Path, documents: Sequence[data.Document]) -> dict[str, float]:
    """Notes. Each way ingests the files into an empty database, and then once more, which changes nothing."""
    from utils.ray_cluster.cluster import Cluster

    notes = {}
    with TemporaryDirectory() as scratch, Cluster():
        files = write_files(documents, Path(scratch))
        for count in (0, *COUNTS):
            retriever = retriever_of(embedder, None, embedded(database, f"ray_{os.getpid()}_{count}"))
            name = f"{count} worker{'s' if count > 1 else ''}" if count else HERE
            for status in ("new", "unchanged"):
                begin = perf_counter()
                if count:
                    make = worker_retriever(embedder, retriever.store.url, count)
                    found = _statuses(ingesting.by_workers(files, make, count))
                else:
                    found = _statuses(ingesting.here(files, retriever))
                seconds = perf_counter() - begin
                if found != {status: len(files)}:
                    raise RuntimeError(f"{name}: all {len(files)} files should be {status}, and they are {found}.")
                notes[f"{RAY}{name}, s for {len(files)} files that are {status}"] = round(seconds, 1)
                if status == "new":
                    passages = retriever.store.counts()["chunk"]
                    notes[f"{RAY}{name}, passages/s"] = round(passages / seconds, 1)
            retriever.store.close()
    return notes


def _statuses(outcomes: Iterable[ingesting.Outcome]) -> Counter:
    return Counter(own["status"] or own["error"] for own in outcomes)


def main() -> None:
    """Measure into the notes of results/bench/rag_serving.json."""
    folder = database_folder("bench")
    documents = [*data.sample(*data.numpy_corpus(), 400)[0], *data.descriptions()]
    with bench.exclusive():
        notes = measure(convert.prepare_embedder(), folder, documents)
    stop(folder)
    report.amend(report.BENCH / "rag_serving.json", RAY, notes)
