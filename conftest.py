"""Results under pytest go to a temporary folder, so the work tree stays clean; workers share out the cores.

Notebooks come first: they take minutes, and what they convert the tests after them find in the cache.
"""

import os
import tempfile
from collections.abc import Iterator

import pytest

OUTPUT_TIMEOUT_S = 120  # for a cell's output to arrive after its reply


def pytest_configure(config: pytest.Config) -> None:
    """Workers side by side share the cores: threads of PyTorch that spin would only keep each other waiting."""
    if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.suffix != ".ipynb")
    for item in items:
        if item.path.suffix == ".ipynb":  # nbval's 5 seconds are too few when the other worker has the cores
            item.output_timeout = OUTPUT_TIMEOUT_S


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="results-") as folder, pytest.MonkeyPatch.context() as patch:
        if "RESULTS_DIR" not in os.environ:
            patch.setenv("RESULTS_DIR", folder)
        patch.setenv("BENCH_ONCE", "1")  # timings beside another worker are worth nothing
        return (yield)
