"""The nearest of up to a million vectors in pgvector: exact and by HNSW, with the size of the index and its build time.

The vectors are seeded and belong to no text: this is speed only, and how often HNSW finds what an exact search finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter

import numpy as np
import psycopg
from pgvector import Vector
from pgvector.psycopg import register_vector

from notebooks.rag_serving.pipeline.database import embedded, stop
from notebooks.rag_serving.server import database_folder
from utils import bench, preflight, report

VECTORS = "vectors: "  # of the notes that are measured here
COUNTS = (1_000, 10_000, 100_000, 1_000_000)
QUESTIONS, NEAREST = 50, 10
EF_SEARCH = (40, 100)
GROUPS = 1000  # of vectors, as texts about the same things have them
BLOCK = 10_000  # vectors that are made at a time
BUILD_BYTES = 3_000  # for a vector while HNSW is built: with less than the whole graph in memory it takes far longer
LEAST_BUILD_MB = 64


def seeded(count: int, dimensions: int = 384, seed: int = 0) -> Iterator[np.ndarray]:
    """Normalised vectors in GROUPS groups, at most BLOCK at a time, [block, dimensions]."""
    centres = np.random.default_rng(0).standard_normal((GROUPS, dimensions), np.float32)
    rng = np.random.default_rng([1, seed])
    for begin in range(0, count, BLOCK):
        size = min(BLOCK, count - begin)
        vectors = centres[rng.integers(0, GROUPS, size)] + rng.standard_normal((size, dimensions), np.float32)
        yield vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def measure(url: str, count: int) -> dict[str, float]:
    """Notes on `count` vectors in a table of the database at `url`, which is removed again."""
    name = f"{VECTORS}{count:,}"
    asked = [Vector(vector) for vector in next(seeded(QUESTIONS, seed=1))]
    with psycopg.connect(url, autocommit=True) as connection:
        _fill(connection, count)
        exact, exact_ms = _nearest(connection, asked)
        begin = perf_counter()
        connection.execute(f"set maintenance_work_mem = '{LEAST_BUILD_MB + count * BUILD_BYTES // 10**6}MB'")
        connection.execute("create index nearest_seeded on seeded using hnsw (embedding vector_ip_ops)")
        notes = {f"{name}, exact, ms": exact_ms, f"{name}, s to build HNSW": round(perf_counter() - begin, 1)}
        for what, relation in (("vectors", "seeded"), ("HNSW", "nearest_seeded")):
            size = connection.execute("select pg_table_size(%s::regclass) / 1e6", (relation,)).fetchone()[0]
            notes[f"{name}, MB of {what}"] = round(float(size), 1)
        connection.execute("set enable_seqscan = off")
        for ef_search in EF_SEARCH:
            connection.execute(f"set hnsw.ef_search = {ef_search}")
            found, ms = _nearest(connection, asked)
            shared = [len(one & other) / NEAREST for one, other in zip(found, exact, strict=True)]
            notes[f"{name}, HNSW, ef_search {ef_search}, ms"] = ms
            notes[f"{name}, HNSW, ef_search {ef_search}, recall"] = round(float(np.mean(shared)), 3)
        connection.execute("drop table seeded")
    return notes


def _fill(connection: psycopg.Connection, count: int) -> None:
    connection.execute("create extension if not exists vector")
    register_vector(connection)
    connection.execute("drop table if exists seeded")
    connection.execute("create table seeded (id int primary key, embedding vector(384))")
    with connection.cursor().copy("copy seeded from stdin (format binary)") as copy:
        copy.set_types(["int4", "vector"])
        number = 0
        for block in seeded(count):
            for vector in block:
                copy.write_row((number, Vector(vector)))
                number += 1
    connection.execute("vacuum analyze seeded")


def _nearest(connection: psycopg.Connection, asked: Sequence[Vector]) -> tuple[list[set[int]], float]:
    """The numbers of the NEAREST vectors of each question, and the median time of a search in ms."""
    query = f"select id from seeded order by embedding <#> %s limit {NEAREST}"
    found, samples = [], []
    for vector in asked:
        begin = perf_counter()
        rows = connection.execute(query, (vector,)).fetchall()
        samples.append((perf_counter() - begin) * 1e3)
        found.append({number for (number,) in rows})
    return found, round(median(samples), 2)


def main() -> None:
    """Measure all of COUNTS into the notes of results/bench/rag_serving.json."""
    preflight.check(ram_gb=6, disk_gb=10, what="Measuring a million vectors")
    folder, notes = database_folder("bench"), {}
    with bench.exclusive():
        for count in COUNTS:
            notes |= measure(embedded(folder, "seeded"), count)
        stop(folder)
    report.amend(report.BENCH / "rag_serving.json", VECTORS, notes)
