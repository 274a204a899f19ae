"""Ingestion of files by workers on Ray Data: one that dies, files that are no text, and a database that is away."""

from functools import partial

import numpy as np
import pytest

from notebooks.rag_serving.pipeline import split
from notebooks.rag_serving.server import ingesting
from tests.rag_serving import ray_workers
from utils.ray_cluster.cluster import Cluster

COUNT = 40


@pytest.fixture
def files(tmp_path):
    made = [tmp_path / f"document{number}.txt" for number in range(COUNT)]
    for number, file in enumerate(made):
        file.write_text(" ".join(f"word{number}_{place}" for place in range(10 + 3 * number)), encoding="utf-8")
    return made


def passages(files) -> int:
    cut = (split(file.read_text(encoding="utf-8"), lambda words: [1] * len(words), 20, 4) for file in files)
    return sum(map(len, cut))


def test_a_worker_that_dies_loses_nothing_and_a_second_run_changes_nothing(files, url, tmp_path):
    broken, log = tmp_path / "broken.txt", tmp_path / "log"
    broken.write_bytes(b"\xff\xfe\x00")
    bad = [broken, tmp_path / "none.txt"]
    with Cluster():
        first = list(ingesting.by_workers([*bad, *files], partial(ray_workers.retriever, url, log, 3), 2))
        embedded = ray_workers.noted(log)
        second = list(ingesting.by_workers(files, partial(ray_workers.retriever, url, log), 2))
    assert sorted(own["source"] for own in first) == sorted(map(str, [*bad, *files]))
    errors = {own["source"]: own["error"] for own in first if own["error"]}
    assert set(errors) == set(map(str, bad)) and "broken.txt is no text in UTF-8" in errors[str(broken)]
    assert log.with_suffix(".killed").exists() and len(set(embedded)) >= 2
    # What the dead worker had written of its batch is there, and is not embedded again.
    assert {own["status"] for own in first if not own["error"]} == {"new", "unchanged"}
    assert len(embedded) == COUNT
    retriever = ray_workers.retriever(url, log)
    assert retriever.store.counts() | {"posting": 0} == {"document": COUNT, "chunk": passages(files), "posting": 0}
    assert {own["status"] for own in second} == {"unchanged"} and len(second) == COUNT
    assert ray_workers.noted(log) == embedded
    retriever.store.close()


def test_while_the_database_is_away_no_file_is_written_and_each_has_an_error(files, tmp_path):
    away = f"postgresql://postgres@/rag?host={tmp_path}"
    worker = ingesting.Worker(partial(ray_workers.retriever, away, tmp_path / "log"))
    batch = {"source": np.array(["a", "b"]), "path": np.array([str(file) for file in files[:2]])}
    found = worker(batch)
    assert found["source"].tolist() == ["a", "b"] and found["status"].tolist() == ["", ""]
    assert all("The database is not available" in error for error in found["error"].tolist())
    worker.retriever.store.close()
