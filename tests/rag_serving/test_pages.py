"""README.md states what was measured on its own."""

import re

import pytest

from notebooks.rag_serving.measuring import scaling, vectors
from utils import report
from utils.paths import notebook_dir

README = " ".join((notebook_dir("notebooks.rag_serving") / "README.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def notes() -> dict:
    return report.load(report.BENCH / "rag_serving.json")["notes"]


@pytest.mark.parametrize("count", vectors.COUNTS)
def test_the_search_of_so_many_vectors_is_as_measured(count, notes):
    name = f"{vectors.VECTORS}{count:,}"
    hnsw = [f"{name}, HNSW, ef_search {size}, {what}" for size in vectors.EF_SEARCH for what in ("ms", "recall")]
    order = [f"{name}, exact, ms", *hnsw, f"{name}, MB of HNSW", f"{name}, s to build HNSW"]
    assert " | ".join([f"| {count:,}", *(str(notes[own]) for own in order)]) + " |" in README


def test_the_speed_of_ingestion_is_as_measured(notes):
    workers = ("this process", "1 worker", "2 workers")
    speeds = [round(notes[f"{scaling.RAY}{own}, passages/s"]) for own in workers]
    stated = re.search(r"ingests (\d+) passages a second, one worker (\d+), and two workers (\d+)", README)
    assert [int(one) for one in stated.groups()] == speeds
