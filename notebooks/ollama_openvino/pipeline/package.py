"""A model's IR folder as one tar.gz file, which the OpenVINO fork of Ollama takes, and back.

`pack` writes the same bytes for the same files. `unpack` trusts nothing in a package: neither names nor sizes nor kinds
of members. It unpacks into a folder that is named by the package's SHA-256 and appears when it is complete.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath

MODEL = ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_tokenizer.bin")
DETOKENIZER = ("openvino_detokenizer.xml", "openvino_detokenizer.bin")
STATE = b'type="ReadValue"'  # a language model holds its KV cache as state
NOT_PACKED = {"manifest.json"}  # of a conversion's cache
MAX_FILES = 1000
MAX_BYTES = 64 * 2**30  # of all files together
MAX_HEADER_BYTES = 2**20  # of one name or other field of a header
BLOCK = 2**20


class PackageError(ValueError):
    """A package that cannot be used; the message says why."""


def pack(folder: Path, archive: Path) -> str:
    """Write the files of an IR folder to `archive` (.tar.gz), below a folder of the same name; returns its SHA-256.

    The order, times, owners and rights are fixed, so that the same files give the same package (with the same zlib).
    The file is complete when it appears. Raises PackageError for a folder that lacks a file of the model.
    """
    folder, archive = Path(folder), Path(archive)
    kind_of(folder)
    partial = archive.with_name(f".{archive.name}.partial-{os.urandom(8).hex()}")
    try:
        with partial.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as packed:
            with tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as tar:
                for file in sorted(folder.rglob("*")):
                    if file.is_file() and file.name not in NOT_PACKED:
                        member = tarfile.TarInfo(f"{folder.name}/{file.relative_to(folder).as_posix()}")
                        member.size = file.stat().st_size
                        with file.open("rb") as content:
                            tar.addfile(member, content)
        os.replace(partial, archive)
    finally:
        partial.unlink(missing_ok=True)
    return file_sha256(archive)


def unpack(archive: Path, parent: Path, *, digest: str | None = None, max_bytes: int = MAX_BYTES) -> Path:
    """Unpack a package below `parent`, once; returns the folder that holds the model.

    digest: the SHA-256 that the package must have. max_bytes: of all files together. Raises PackageError for another
    digest, and for members that lie outside, are no plain files, occur twice, are too many or too large. Nothing is
    left behind then.
    """
    archive, parent = Path(archive), Path(parent)
    if digest is not None and (parent / digest).is_dir():
        return _model_folder(parent / digest)  # only a complete package gets this name
    found = file_sha256(archive)
    if digest is not None and found != digest:
        raise PackageError(f"{archive.name} has the SHA-256 {found}, not {digest}: it was changed or cut short.")
    folder = parent / found
    if not folder.is_dir():
        parent.mkdir(parents=True, exist_ok=True)
        partial = parent / f".partial-{found}-{os.urandom(8).hex()}"
        try:
            partial.mkdir()
            _extract(archive, partial, max_bytes)
            _model_folder(partial)
            with suppress(OSError):  # another one was faster
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return _model_folder(folder)


def kind_of(folder: Path) -> str:
    """What an IR folder holds: "completion", a language model, or "embedding", a model of vectors.

    Raises PackageError that names the file that is missing.
    """
    generates = (folder / MODEL[0]).is_file() and STATE in (folder / MODEL[0]).read_bytes()
    for name in MODEL + (DETOKENIZER if generates else ()):
        if not (folder / name).is_file():
            raise PackageError(f"{name} is missing: the package must hold an OpenVINO IR with its tokenizer.")
    return "completion" if generates else "embedding"


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _model_folder(folder: Path) -> Path:
    """The folder below an unpacked package that holds the model: the package itself or its only folder."""
    inside = list(folder.iterdir())
    model = inside[0] if len(inside) == 1 and inside[0].is_dir() else folder
    kind_of(model)
    return model


def _extract(archive: Path, folder: Path, max_bytes: int) -> None:
    names, left = set(), min(max_bytes, shutil.disk_usage(folder).free)
    try:
        with gzip.open(archive) as unzipped, tarfile.open(fileobj=_Bounded(unzipped), mode="r:") as tar:
            for count, member in enumerate(tar):
                if count >= MAX_FILES:
                    raise PackageError(f"The package holds more than {MAX_FILES} files.")
                name = _check_name(member.name)
                if member.isdir():  # folders come with their files
                    continue
                if not name or not member.isreg() or member.issparse():
                    raise PackageError(f"{member.name} in the package is no plain file: links and devices are refused.")
                if name in names:
                    raise PackageError(f"{member.name} is in the package twice.")
                names.add(name)
                left -= member.size
                if left < 0:
                    raise PackageError(
                        f"The files of the package take more than {max_bytes} bytes, or more than the disk has left."
                    )
                tar.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise PackageError(f"{archive.name} is no tar.gz file, or is damaged ({error}).") from error


def _check_name(name: str) -> str:
    """The name in a form in which equal files are equal on every system; "" for the package itself."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or re.search(r"[\\:\x00]", name):
        raise PackageError(f"{name!r} in the package names a path outside of it.")
    return "" if not path.parts else str(path).casefold()


class _Bounded(io.RawIOBase):
    """A stream that refuses to read much at once, as tarfile does for a header that claims to be huge."""

    def __init__(self, stream) -> None:
        self.stream = stream

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise PackageError("The package has a header that is larger than any name.")
        return self.stream.read(size)

    def seek(self, *where) -> int:
        return self.stream.seek(*where)

    def tell(self) -> int:
        return self.stream.tell()
