"""Runs a notebook headless and judges it by the results it writes.

`python -m utils.run CASE [--model released] [--device GPU] [--json FILE] [--save FILE] [--record]` prints a line per
code cell and whether the results pass. It adds to the results how long the notebook took and how much memory; with
`--record` it adds a row about this machine to the table of devices in the notebook's README instead.
Exit status: 0 they pass; 1 they fail, a cell raised, or the kernel died; 2 there is no such case.
"""

import argparse
import os
import shutil
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import psutil

from utils import devices, preflight, report
from utils.files import replaced
from utils.paths import ROOT

SAMPLED_S = 0.5  # between two looks at the memory


class CellFailed(RuntimeError):
    """A cell raised an error, or the kernel died in it."""


class PeakMemory:
    """The most memory in GB that the processes started in the `with` block by this one take together.

    It is sampled. On Linux, memory that several processes share, such as libraries, counts once.
    """

    def __init__(self) -> None:
        self.gb = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._earlier = set(psutil.Process().children(recursive=True))
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        process = psutil.Process()
        while not self._done.wait(SAMPLED_S):
            total = 0
            for child in set(process.children(recursive=True)) - self._earlier:
                with suppress(psutil.Error):  # it has ended
                    info = child.memory_full_info()
                    total += getattr(info, "pss", info.rss)
            self.gb = max(self.gb, total / preflight.GB)


def cases(notebooks: Path = ROOT / "notebooks") -> list[str]:
    """The use cases: folders that hold a notebook of their own name."""
    return sorted(path.stem for path in notebooks.glob("*/*.ipynb") if path.stem == path.parent.name)


def execute(notebook: Path, environment: dict[str, str], save: Path | None = None) -> None:
    """Run every cell in a fresh kernel in the notebook's folder, printing a line per code cell.

    `environment` is added to this process's. `save` receives the executed notebook, also after a failure.
    Raises CellFailed, which names the cell and the error.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    book = nbformat.read(notebook, as_version=4)
    labels = _labels(book)
    count = len(labels)
    running = ""
    begin = perf_counter()

    def starts(cell, cell_index) -> None:
        nonlocal running, begin
        if cell_index in labels:
            number, label = labels[cell_index]
            running, begin = f"Cell {number} ({label}) of {notebook.name}", perf_counter()
            print(f"[{number:>{len(str(count))}}/{count}] {label}", end=" ", flush=True)

    def ends(cell, cell_index, execute_reply) -> None:
        if cell_index in labels:
            print(f"... {perf_counter() - begin:.1f} s", flush=True)

    client = NotebookClient(
        book,
        timeout=None,
        kernel_name="python3",  # the kernel of this environment, whatever name the author's had
        # It warns of unencrypted traffic, which stays on loopback; colours are escape codes in a log.
        extra_arguments=["--log-level=ERROR", "--InteractiveShell.colors=nocolor"],
        resources={"metadata": {"path": str(notebook.parent)}},
        coalesce_streams=True,  # only the end of a progress bar stays
        record_timing=False,  # it would change every cell in every run
        on_cell_start=starts,
        on_cell_executed=ends,
    )
    try:
        client.execute(env={**os.environ, **environment})
    except CellExecutionError as error:
        print(error.traceback, file=sys.stderr)
        raise CellFailed(f"{running} failed: {error.ename}: {error.evalue}") from error
    except DeadKernelError as error:
        raise CellFailed(
            f"{running} failed: the kernel died, most likely killed for want of memory "
            f"({preflight.free_gb():.2g} GB are free now). Close other programs and kernels, "
            "or choose a smaller model (MODEL=tiny)."
        ) from error
    finally:
        if save:
            nbformat.write(book, save)


def run(
    case: str,
    model: str | None = None,
    device: str | None = None,
    output: Path | None = None,
    save: Path | None = None,
    record: bool = False,
    notebooks: Path = ROOT / "notebooks",
) -> int:
    """Run a use case and return the exit status.

    Model and device default to the variables MODEL and DEVICE, then to tiny and CPU. The results go to
    `output`, pass or fail. Without `output` they go to RESULTS_DIR or `results/`, and only when they
    pass: what stands there is not replaced by a failure. record: the README's table of devices gets a row instead.
    """
    if case not in cases(notebooks):
        print(
            f"There is no use case {case!r}. There are: {', '.join(cases(notebooks)) or 'none'}.",
            file=sys.stderr,
        )
        return 2
    standing = Path(os.environ.get("RESULTS_DIR") or ROOT / "results") / f"{case}.json"
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "MODEL": model or os.environ.get("MODEL") or "tiny",
            "DEVICE": device or os.environ.get("DEVICE") or "CPU",
            "RESULTS_DIR": folder,
        }
        written = Path(folder) / f"{case}.json"
        try:
            begin = perf_counter()
            with PeakMemory() as peak:
                execute(notebooks / case / f"{case}.ipynb", environment, save)
            minutes = (perf_counter() - begin) / 60
            if not written.is_file():
                raise CellFailed(f"{case} wrote no results: its notebook must call report.save({case!r}, ...).")
            report.add_needs(written, minutes, peak.gb)
            passed, failing = report.judge(report.load(written))
        except (CellFailed, report.InvalidResults) as error:
            print(f"\nFAIL: {error}", file=sys.stderr)
            if record:
                _record(case, environment, str(error))
            return 1
        if record:
            _record(case, environment, devices.PASSES if passed else failing[0])
        if output or (passed and not record):
            with replaced(output or standing) as partial:
                shutil.copyfile(written, partial)
            print(f"Results: {output or standing}")
        for failure in failing:
            print(f"FAIL: {failure}", file=sys.stderr)
        if passed:
            print(f"PASS: {case} with model {environment['MODEL']} on {environment['DEVICE']}")
        elif not output and not record:
            print(f"{standing} stays as it was; --json FILE writes failing results, too.", file=sys.stderr)
        return 0 if passed else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m utils.run", description="Run a notebook headless.")
    parser.add_argument("case", help=f"one of: {', '.join(cases())}")
    parser.add_argument("--model", help="tiny (default), released, or another that the notebook offers")
    parser.add_argument("--device", help="CPU (default), GPU, NPU or AUTO")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, pass or fail")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the executed notebook here")
    parser.add_argument("--record", action="store_true", help="only add this machine to the README's table of devices")
    options = parser.parse_args(arguments)
    return run(options.case, options.model, options.device, options.json, options.save, options.record)


def _record(case: str, environment: dict[str, str], result: str) -> None:
    path = devices.record(case, environment["DEVICE"], environment["MODEL"], result)
    report.regenerate()
    print(f"Recorded in {path} and in the notebook's README.")


def _labels(book) -> dict[int, tuple[int, str]]:
    """Cell index -> (number among the code cells that run, the heading just above it or its first line)."""
    labels: dict[int, tuple[int, str]] = {}
    heading = ""
    for index, cell in enumerate(book.cells):
        lines = [line.strip() for line in cell.source.splitlines() if line.strip()]
        if cell.cell_type == "markdown":
            heading = next((line.lstrip("# ") for line in lines if line.startswith("#")), heading)
        elif cell.cell_type == "code" and lines:
            labels[index] = (len(labels) + 1, (heading or lines[0])[:70])
            heading = ""
    return labels


if __name__ == "__main__":
    sys.exit(main())
