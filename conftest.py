"""Results of tests and of notebooks under pytest go to a temporary folder, so the work tree stays clean."""

import os
import tempfile
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="results-") as folder:
        before = os.environ.setdefault("RESULTS_DIR", folder)
        try:
            return (yield)
        finally:
            if before == folder:
                del os.environ["RESULTS_DIR"]
