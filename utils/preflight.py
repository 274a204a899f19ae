"""Is there enough memory and disk, told before the work begins; and a child process whose death becomes a
sentence.

Memory means what this process may have: a container's limit (cgroup v1 or v2) counts, not only the
machine's RAM.
"""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from utils.paths import models_dir

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
    while not place.exists():  # the folder may be about to be made
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


def in_child(function: Callable, *args, what: str = "The work", ram_gb: float = 0):
    """Call an importable function in a fresh process and return its result, or raise its exception here.

    All the memory goes back when the process ends. `ram_gb` is what the work needs: it is checked first and
    named when it was not enough. Raises ValueError for a function that another process cannot import (one
    written in a notebook cell, a lambda), RuntimeError when the process was killed or died.
    """
    name = getattr(function, "__qualname__", "<no function>")
    if "<" in name or function.__module__ == "__main__":
        raise ValueError(
            f"{name} cannot run in another process, which would have to "
            "import it. Put it at the top level of a module (.py file)."
        )
    check(ram_gb=ram_gb, what=what)
    context = multiprocessing.get_context("spawn")  # fork would copy running threads' locks, and is not everywhere
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_serve, args=(theirs, function, args), daemon=False)
    child.start()
    theirs.close()  # so that the end of the child is the end of the pipe
    try:
        peak = _wait(ours, child.pid)
        try:
            succeeded, outcome = ours.recv()
        except EOFError:
            child.join()
            raise RuntimeError(_epitaph(what, child.exitcode, peak, ram_gb)) from None
        child.join()
    finally:
        ours.close()
        if child.is_alive():  # interrupted here
            child.kill()
            child.join()
    if succeeded:
        return outcome
    raise outcome


def _serve(connection, function: Callable, args: tuple) -> None:
    os.dup2(2, 1)  # what it prints is news of its progress, not output of a notebook's cell
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):  # notebook kernels set them; the child writes to a log
        os.environ.pop(name, None)
    try:
        outcome = (True, function(*args))
    except Exception as error:
        outcome = (False, error)
    try:
        connection.send(outcome)
    except Exception as error:  # neither every result nor every exception can be sent
        about = "result" if outcome[0] else f"error ({outcome[1]!r})"
        connection.send((False, RuntimeError(f"The {about} of {function.__qualname__} cannot be sent back: {error}")))


def _wait(connection, pid: int) -> float:
    """Wait for news of a child (or its end); returns the most memory it was seen to hold, in GB."""
    peak = 0.0
    while not connection.poll(0.1):
        try:
            peak = max(peak, psutil.Process(pid).memory_info().rss / GB)
        except psutil.Error:
            break
    return peak


def _epitaph(what: str, exitcode: int | None, peak: float, ram_gb: float) -> str:
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
                most = int((folder / limit).read_text())
                used = int((folder / use).read_text())
            except (OSError, ValueError):  # absent, or "max"
                continue
            yield most, used - _reclaimable(folder, cache)


def _reclaimable(folder: Path, key: str) -> int:
    """Bytes of file cache that count as used but are given up at need."""
    try:
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(fields.get(key, 0))
    except (OSError, ValueError):
        return 0
