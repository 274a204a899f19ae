"""Results under pytest go to a temporary folder, so the work tree stays clean; workers share out the cores."""

import os
import tempfile
from collections.abc import Iterator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Workers side by side share the cores: threads of PyTorch that spin would only keep each other waiting."""
    if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="results-") as folder:
        before = os.environ.setdefault("RESULTS_DIR", folder)
        try:
            return (yield)
        finally:
            if before == folder:
                del os.environ["RESULTS_DIR"]
