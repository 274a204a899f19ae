"""Results under pytest go to a temporary folder, so the work tree stays clean; workers share out the cores.

Notebooks come first: they take minutes, and what they convert the tests after them find in the cache. Then come the
tests of the whole collection and of utils, and at last those of each notebook.
"""

import math
import os
import tempfile
from collections.abc import Iterator
from time import monotonic

import pytest

OUTPUT_TIMEOUT_S = 120  # for a cell's output to arrive after its reply
BEGIN = monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "no test begins after that; those that are left are skipped by name"
    parser.addoption("--seconds", type=float, default=math.inf, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Workers side by side share the cores: threads of PyTorch that spin would only keep each other waiting."""
    if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    for item in items:
        if item.path.suffix == ".ipynb":  # nbval's 5 seconds are too few when the other worker has the cores
            item.output_timeout = OUTPUT_TIMEOUT_S


def _place(item: pytest.Item) -> int:
    """Where a test stands in the order of all."""
    folder = item.path.relative_to(item.config.rootpath).parent.as_posix()
    if item.path.suffix == ".ipynb":
        return 0
    return 1 if folder == "tests" or folder.startswith("tests/utils") else 2


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("seconds")
    if monotonic() - BEGIN > limit:
        pytest.skip(f"not run, for {limit:.0f} s were over")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="results-") as folder, pytest.MonkeyPatch.context() as patch:
        if "RESULTS_DIR" not in os.environ:
            patch.setenv("RESULTS_DIR", folder)
        patch.setenv("BENCH_ONCE", "1")  # timings beside another worker are worth nothing
        return (yield)
