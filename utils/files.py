"""Hashes of files, and atomic writes. Standard library only."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def sha256(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Write a file atomically: yield a path of the same name; the file written there replaces `path` after the block.

    Other files in its folder, such as the .bin of an IR, are moved first. An exception leaves `path` as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".partial-", dir=path.parent) as folder:
        written = Path(folder, path.name)
        yield written
        for file in sorted(Path(folder).iterdir(), key=lambda file: file == written):
            os.replace(file, path.with_name(file.name))
