"""Checks of memory and disk before the work begins, and work in a child process whose death becomes an exception.

Memory means what this process may have: a container's limit (cgroup v1 or v2) counts, not only the
machine's RAM.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from pickle import UnpicklingError
from typing import BinaryIO

import psutil

from utils.paths import ROOT, models_dir

CHILD = Path(__file__).with_name("child.py")
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
GB = 1e9


class NotEnough(OSError):
    """Too little memory or disk for what was asked."""


def check(ram_gb: float = 0, disk_gb: float = 0, path: str | Path | None = None, what: str = "this notebook") -> None:
    """Raise NotEnough unless `ram_gb` of memory and `disk_gb` at `path` (default: the models) are free."""
    if ram_gb and (free := free_gb()) < ram_gb:
        raise NotEnough(
            f"{what} needs {ram_gb:.3g} GB of memory, and {free:.2g} GB are free. "
            "Close other programs and kernels, choose a smaller model (MODEL=tiny), "
            "or raise the container's limit."
        )
    if not disk_gb:
        return
    if path is None:
        path = models_dir()
    place = Path(path).absolute()
    while not place.exists():  # the folder itself may not exist yet
        place = place.parent
    if (free := shutil.disk_usage(place).free / GB) < disk_gb:
        raise NotEnough(
            f"{what} needs {disk_gb:.3g} GB of disk at {path}, and {free:.2g} GB are free. "
            "Delete what you no longer need there, or let MODELS_DIR name a folder on a larger disk."
        )


def free_gb() -> float:
    """Memory in GB that this process can still take without swapping."""
    free = [limit - used for limit, used in _limits()]
    return max(0, min([psutil.virtual_memory().available, *free])) / GB


def total_gb() -> float:
    """Memory in GB that this process could have at most."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())]) / GB


class Child:
    """A fresh process that calls importable functions one after another, and keeps what they leave in their modules.

    Use it in a `with` statement: all its memory is free again at the end. what: the work, as messages call it. ram_gb:
    memory that the work needs; it is checked first (NotEnough), and named in the message when it was not enough. log:
    an open file for what the process prints, in place of the error stream.
    """

    def __init__(self, what: str = "The work", ram_gb: float = 0, log: BinaryIO | None = None) -> None:
        check(ram_gb=ram_gb, what=what)
        self.what, self.ram_gb, self.peak_gb = what, ram_gb, 0.0
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        self._main = spec and spec.name  # None for a script or a notebook
        start = {"path": [*map(str, sys.path), str(ROOT)], "main": self._main, "parent": os.getpid()}
        # Notebook kernels ask for colours; the child writes to a log.
        environment = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
        # -P: else the folder of child.py would come first, and its select.py hide Python's module of that name.
        command = [sys.executable, "-P", str(CHILD)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        self._process = subprocess.Popen(command, env=environment, **pipes)
        self._process.stdin.write(json.dumps(start).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, kind: type | None, *error) -> None:
        if kind is not None:
            self._process.kill()
        with suppress(BrokenPipeError):  # of what was left to write when the process died
            self._process.__exit__(kind, *error)

    def call(self, function: Callable, *args):
        """Call a function in the process; return its result, or raise its exception.

        Raises ValueError for a function that another process cannot import (of a script, of a notebook's cell, a
        lambda), RuntimeError when the process was killed or died.
        """
        name = getattr(function, "__qualname__", "<no function>")
        if "<" in name or (function.__module__ == "__main__" and not self._main):
            raise ValueError(
                f"{name} cannot run in another process, which would have to "
                "import it. Put it at the top level of a module (.py file)."
            )
        # A copy: Python 3.12.1 crashes where its garbage collector meets a buffer that the traceback of an error keeps.
        job = bytes(ForkingPickler.dumps((function, args)))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self._exchange, job)
            try:
                answer = self._watch(waiting)
            except BaseException:  # such as an interrupt of the kernel
                self._process.kill()
                raise
        try:
            succeeded, outcome = ForkingPickler.loads(answer)
        except (EOFError, UnpicklingError):  # it ended before it had written all of it
            raise RuntimeError(_failure(self.what, self._process.wait(), self.peak_gb, self.ram_gb)) from None
        if succeeded:
            return outcome
        raise outcome

    def _exchange(self, job: bytes) -> bytes:
        """Send a job and wait for the answer, which is cut off where the process dies."""
        with suppress(BrokenPipeError):
            self._process.stdin.write(len(job).to_bytes(8, "little") + job)
            self._process.stdin.flush()
        length = self._process.stdout.read(8)
        return self._process.stdout.read(int.from_bytes(length, "little"))

    def _watch(self, waiting: Future) -> bytes:
        """The answer; until it is there, the memory of the process is sampled every 0.1 s for `peak_gb`."""
        while not wait([waiting], timeout=0.1).done:
            with suppress(psutil.Error):
                self.peak_gb = max(self.peak_gb, psutil.Process(self.pid).memory_info().rss / GB)
        return waiting.result()


def in_child(function: Callable, *args, what: str = "The work", ram_gb: float = 0):
    """Call an importable function in a process of its own (`Child`); return its result, or raise its exception."""
    with Child(what, ram_gb) as child:
        return child.call(function, *args)


def _failure(what: str, exitcode: int | None, peak: float, ram_gb: float) -> str:
    if exitcode != -getattr(signal, "SIGKILL", 9):
        return f"{what} failed: its process ended with status {exitcode} and no result. See its messages above."
    need = f"It needs {ram_gb:.3g} GB" if ram_gb else f"It had taken {peak:.2g} GB"
    return (
        f"{what} failed: its process was killed, most likely by the system for want of memory. {need}; "
        f"{free_gb():.2g} GB are free now. "
        "Close other programs and kernels, or choose a smaller model (MODEL=tiny)."
    )


def _limits() -> Iterator[tuple[float, float]]:
    """(limit, use) in bytes of each control group that limits this process's memory (Linux)."""
    try:
        lines = MEMBERSHIP.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base, limit, use, cache = CGROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, limit, use = CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        inside = base / group.lstrip("/")
        # A container often sees its own group as the root of the mount, whatever path the kernel reports.
        for folder in {inside, *(parent for parent in inside.parents if parent.is_relative_to(base)), base}:
            try:
                most = int((folder / limit).read_text(encoding="utf-8"))
                used = int((folder / use).read_text(encoding="utf-8"))
            except (OSError, ValueError):  # absent, or "max"
                continue
            yield most, used - _reclaimable(folder, cache)


def _reclaimable(folder: Path, key: str) -> int:
    """Bytes of file cache: they count as used, but are freed on demand."""
    try:
        fields = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
        return int(fields.get(key, 0))
    except (OSError, ValueError):
        return 0
