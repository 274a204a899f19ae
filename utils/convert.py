"""Cached conversion: a folder of OpenVINO IR, keyed by checkpoint, options, the code that converts and the versions of
packages.

A build goes to `<folder>.partial`, gets a manifest as its last file and is then renamed, so a folder with a
valid manifest is complete. Processes that ask for the same conversion wait for each other and build it
once.
"""

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from importlib import metadata
from pathlib import Path

from utils import locks, paths, preflight, sources
from utils.files import sha256

PACKAGES = ("openvino", "nncf", "transformers", "optimum-intel", "torch")


def cached(
    name: str,
    *,
    checkpoint: str | Path,
    arguments: Mapping | None = None,
    versions: Sequence[str] = PACKAGES,
    code: Callable | None = None,
) -> Callable[[Callable], Callable[..., Path]]:
    """Decorate a function `f(folder, **options)` that fills a folder: `f(**options)` then returns that folder.

        @cached("net-fp16", checkpoint=checkpoint)
        def fp16(folder):
            ov.save_model(ov.convert_model(load(checkpoint), example_input=example), folder / "net.xml")

        fp16()  # models/ir/net-fp16-<key>, filled now or in an earlier run

    The key has the contents of the checkpoint, the options, the versions of packages and the code: of a function in a
    module that module, with what it imports of this project; of a function in a notebook's cell its text, with the
    values, files and functions that it uses. Other objects that a cell's function uses, such as a network, have to
    follow from the checkpoint.

    checkpoint: a path (file or folder, hashed) or a digest. arguments: whatever else shapes the result; they and the
    options are JSON values. versions: the packages whose versions shape it. code: the function that the key is made of
    in place of the decorated one. The call raises ValueError for a name or options that cannot be used, RuntimeError
    when the function wrote nothing; what the function raises passes through. Whatever goes wrong, no folder is left
    that a later call trusts.
    """

    def decorate(build: Callable) -> Callable[..., Path]:
        @wraps(build)
        def folder(**options) -> Path:
            inputs = {
                "checkpoint": checkpoint_sha256(Path(checkpoint)) if _is_path(checkpoint) else checkpoint,
                "arguments": {**(arguments or {}), **options},
                "versions": {package: _version(package) for package in versions},
                "code": _code(code or build),
            }
            return _built_once(name, partial(build, **options), inputs)

        return folder

    return decorate


def _built_once(name: str, build: Callable[[Path], object], inputs: dict) -> Path:
    """The folder models/ir/<name>-<key of the inputs> that `build(folder)` filled in this run or in an earlier one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"{name!r} cannot name a conversion: use letters, digits, '.', '_' and '-'.")
    try:
        key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
    except TypeError as error:
        raise ValueError(f"The arguments of {name} must be JSON values (str, number, list, dict): {error}.") from error
    folder = paths.models_dir() / "ir" / f"{name}-{key}"
    inputs = json.loads(json.dumps(inputs))  # as the manifest gives them back: tuples are lists
    if _is_complete(folder, inputs):  # before the lock, so that a read-only folder of models will do
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locks.alone(_lock(folder), f"Another process is converting {folder.name}: waiting for it."):
        if not _is_complete(folder, inputs):
            _remove_leftovers(folder)
            _build(folder, build, inputs)
    return folder


def cached_in_child(
    name: str,
    step: Callable,
    *args,
    checkpoint: str | Path,
    arguments: Mapping | None = None,
    versions: Sequence[str] = PACKAGES,
    ram_gb: float = 0,
) -> Path:
    """The folder that `step(*args, folder)` fills in a child process, unless an earlier run did; see `cached`.

    step: an importable function (`preflight.in_child`). The memory that it takes is free again when the child ends.
    ram_gb: that memory. Raises preflight.NotEnough where memory or disk (half as much, or the checkpoint's size)
    is too small.
    """

    @cached(name, checkpoint=checkpoint, arguments=arguments, versions=versions, code=step)
    def build(folder: Path) -> None:
        print(f"Making {name} ...", file=sys.stderr, flush=True)
        disk_gb = max(ram_gb / 2, _size_gb(Path(checkpoint)) if _is_path(checkpoint) else 0)
        preflight.check(ram_gb=ram_gb, disk_gb=disk_gb, what=f"Making {name}")
        preflight.in_child(step, *args, folder, what=f"Making {name}", ram_gb=ram_gb)

    return build()


def _size_gb(path: Path) -> float:
    """The size of a file, or of all files of a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e9


def checkpoint_sha256(path: Path) -> str:
    """SHA-256 of a file, or of a folder's names and contents; hidden files (receipts, download caches) do
    not count.

    For a checkpoint that `weights` fetched, the hashes of its receipt serve as long as no file changed since.
    """
    if not path.exists():
        raise ValueError(f"The checkpoint {path} does not exist. Fetch it first, or correct the path.")
    known = _receipt(path)
    if path.is_file():
        return known.get(path) or sha256(path)
    names = sorted(
        file.relative_to(path).as_posix()
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not names:
        raise ValueError(f"The checkpoint {path} is an empty folder.")
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{known.get(path / name) or sha256(path / name)}\n".encode())
    return digest.hexdigest()


def _receipt(path: Path) -> dict[Path, str]:
    """Hashes recorded when the checkpoint was fetched, of those files that were not touched since."""
    home = paths.models_dir() / "checkpoints"
    for folder in (path, *path.parents):
        receipt = folder / ".receipt.json"
        if home in folder.parents and receipt.is_file():
            recorded = json.loads(receipt.read_text(encoding="utf-8"))["files"]
            files = {folder / name: entry for name, entry in recorded.items() if (folder / name).is_file()}
            return {
                file: entry["sha256"]
                for file, entry in files.items()
                if file.stat().st_size == entry["size"] and file.stat().st_mtime_ns <= receipt.stat().st_mtime_ns
            }
    return {}


def _code(function: Callable) -> str:
    """SHA-256 of the sources that a function consists of, without those that only fetch and cache files."""
    digest = hashlib.sha256()
    modules = {function.__module__}
    if not sources.file_of(function.__module__, paths.ROOT):  # of a notebook's cell, or a script
        used = sources.used(function, paths.ROOT)
        values = {name: _file_key(value) if isinstance(value, Path) else value for name, value in used.values.items()}
        digest.update(json.dumps([used.texts, values], sort_keys=True).encode())
        modules = used.modules
    caching = sources.reachable(__name__) | sources.reachable("utils.weights")
    reached = {name for module in modules for name in sources.reachable(module, paths.ROOT)}
    for name in sorted(reached - caching):
        digest.update(f"{name}\0{sources.file_of(name, paths.ROOT).read_text(encoding='utf-8')}\n".encode())
    return digest.hexdigest()


def _file_key(path: Path) -> str:
    """Of a path that a cell's function uses: the hash of its contents, or its name where there is nothing yet."""
    return checkpoint_sha256(path) if path.is_file() or (path.is_dir() and any(path.iterdir())) else path.name


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_path(checkpoint: str | Path) -> bool:
    """Whether a checkpoint is a path. Text that names an existing file is one: as a digest it would never change."""
    return isinstance(checkpoint, Path) or Path(checkpoint).exists()


def _lock(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _partial(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")


def _is_complete(folder: Path, inputs: dict) -> bool:
    """Whether the manifest is there, belongs to these inputs, and every file has the size it records."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return manifest["inputs"] == inputs and all(
            (folder / name).stat().st_size == entry["size"] for name, entry in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remove_leftovers(folder: Path) -> None:
    """Remove what is unfinished or damaged here, and unfinished siblings that nobody is building."""
    from filelock import FileLock, Timeout

    for stale in (folder, _partial(folder)):  # their lock is ours
        if stale.exists():
            _remove(stale)
    base = folder.name.rpartition("-")[0]
    for stale in folder.parent.glob(f"{base}-*.partial"):
        try:
            with FileLock(_lock(stale.with_suffix(""))).acquire(timeout=0):
                _remove(stale)
        except Timeout:
            pass  # another process is at work there


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise OSError(
            f"{folder} is incomplete and cannot be removed ({error}). "
            "Close whatever uses it (a running kernel?), or delete it by hand."
        ) from error


def _build(folder: Path, build: Callable[[Path], object], inputs: dict) -> None:
    partial = _partial(folder)
    partial.mkdir()
    try:
        build(partial)
        files = {
            file.relative_to(partial).as_posix(): {
                "size": file.stat().st_size,
                "sha256": sha256(file),
            }
            for file in sorted(partial.rglob("*"))
            if file.is_file()
        }
        if not files:
            raise RuntimeError(f"The conversion {folder.name} wrote no file: its build function must fill the folder.")
        manifest = json.dumps({"inputs": inputs, "files": files}, indent=1)
        (partial / "manifest.json").write_text(manifest, encoding="utf-8")
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
