"""One process at a time: a lock on a file that says so when it has to wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(lock: Path, waiting: str, mode: int = 0o644) -> Iterator[None]:
    """Hold the lock file `lock` in this block, which its folder must exist for; print `waiting` before a wait.

    The lock is released when its process dies. mode: permissions of the file; 0o666 lets other users wait, too.
    """
    from filelock import FileLock, Timeout

    guard = FileLock(lock, mode=mode)
    try:
        guard.acquire(timeout=0)
    except Timeout:
        print(waiting, flush=True)
        guard.acquire()
    try:
        yield
    finally:
        guard.release()
