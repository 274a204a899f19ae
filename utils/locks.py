"""One process at a time: a lock on a file that says so when it has to wait."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(lock: Path, waiting: str, mode: int = 0o644) -> Iterator[None]:
    """Hold the lock file `lock` in this block; before a wait, print `waiting` to the error stream.

    The file's folder must exist. The lock is released when its process dies.
    mode: permissions of the file; with 0o666 other users can wait for it, too.
    """
    from filelock import FileLock, Timeout

    guard = FileLock(lock, mode=mode)
    try:
        guard.acquire(timeout=0)
    except Timeout:
        print(waiting, file=sys.stderr, flush=True)
        guard.acquire()
    try:
        yield
    finally:
        guard.release()
