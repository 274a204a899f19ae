"""A real PostgreSQL with pgvector for the tests, and an empty database for each of them."""

import itertools
import os
import tempfile
from pathlib import Path

import pytest

from notebooks.rag_serving.pipeline import Retriever, database
from tests.rag_serving import fakes

numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster():
    """The folder of a running server, which is stopped at the end.

    It is not in pytest's temporary folder, which each run of pytest closes to other users: as root, the server runs as
    another one.
    """
    with tempfile.TemporaryDirectory(prefix="rag-") as scratch:
        folder = Path(scratch) / "data"
        database.embedded(folder)
        yield folder
        database.stop(folder)


@pytest.fixture
def url(cluster) -> str:
    """The address of an empty database."""
    return database.embedded(cluster, f"test_{os.getpid()}_{next(numbers)}")


@pytest.fixture
def store(url):
    with_tables = fakes.store(url)
    yield with_tables
    with_tables.close()


@pytest.fixture
def retriever(store) -> Retriever:
    """Passages of at most 20 words of an empty database."""
    return Retriever(store, fakes.Embedder(), tokens=20, overlap=4)
