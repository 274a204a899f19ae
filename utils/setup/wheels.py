"""`python -m utils.setup.wheels [SYSTEM ...]` asks the package index for a wheel of every pin of the lock, for each
system and Python.

What has no wheel must be pure Python, so that the wheel that is built of it here serves everywhere. `collect` downloads
the wheels of another system. Standard library only.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from utils.paths import ROOT
from utils.setup import packages
from utils.setup.systems import PYTHONS, SYSTEMS, needed

NOT_FOUND = re.compile(r"No matching distribution found for (\S+)")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


class NoWheel(RuntimeError):
    """A pin that cannot be had for a system; the message names it and says why."""


def collect(pins: Sequence[str], system: str, python: str, folder: Path) -> None:
    """Download the wheels of `pins` for a system and Python into `folder`. Raises NoWheel."""
    pins = list(pins)
    if torch := next((pin for pin in pins if pin.startswith("torch==")), None):
        if SYSTEMS[system].sys_platform == "linux":  # whose general index has a CUDA build
            pins.remove(torch)
            _torch(torch, system, python, folder)
    built = _each(["download", "--quiet", "-d", str(folder)], pins, system, python)
    _build(built, folder)


def missing(pins: Sequence[str], system: str, python: str) -> list[str]:
    """A sentence for each of `pins` that a system and Python cannot have; nothing is kept."""
    with tempfile.TemporaryDirectory() as scratch:
        asked = ["install", "--dry-run", "--quiet", "--ignore-installed", "--target", scratch]
        try:
            built = _each(asked, pins, system, python)
        except NoWheel as error:
            return [str(error)]
        sentences = []
        for pin in built:
            try:
                _build([pin], Path(scratch))
            except NoWheel as error:
                sentences.append(str(error))
        return sentences


def _each(command: Sequence[str], pins: Sequence[str], system: str, python: str) -> list[str]:
    """Run a command of pip for all pins; returns those that have no wheel for the system. Raises NoWheel."""
    pins, without = list(pins), []
    options = ["--no-deps", "--only-binary=:all:", "--implementation=cp", "--python-version", python]
    options += [f"--platform={tag}" for tag in SYSTEMS[system].tags]
    while pins:
        done = _pip(*command, *options, *pins)
        if done.returncode == 0:
            break
        found = [name for name in NOT_FOUND.findall(done.stderr) if name in pins]
        if not found:
            raise NoWheel(f"The index gave no answer for {system}: {_last_line(done.stderr)}")
        for name in found:
            pins.remove(name)
            without.append(name)
    return without


def _build(pins: Sequence[str], folder: Path) -> None:
    """Build wheels that run on every system. Raises NoWheel for what is not pure Python or cannot be had."""
    for pin in pins:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            done = _pip("wheel", "--quiet", "--no-deps", "--find-links", str(folder), "-w", scratch, pin)
            if done.returncode:
                raise NoWheel(f"{pin} has no wheel and cannot be built: {_last_line(done.stderr)}")
            for wheel in Path(scratch).iterdir():
                if not wheel.name.endswith("-none-any.whl"):
                    raise NoWheel(
                        f"{pin} has no wheel there, and the one that is built here ({wheel.name}) is not pure."
                    )
                wheel.rename(folder / wheel.name)


def _torch(pin: str, system: str, python: str, folder: Path) -> None:
    """Download the CPU build of PyTorch. Raises NoWheel where its index does not answer."""
    if not packages.cpu_index_answers():
        raise NoWheel(
            f"{pin} for {SYSTEMS[system].title} comes from {packages.TORCH_CPU}, which does not answer: the general "
            "index has only a CUDA build, GBs larger. Check the connection and the proxy (HTTPS_PROXY)."
        )
    command = ["download", "--quiet", "-d", str(folder), "--index-url", packages.TORCH_CPU]
    if _each(command, [pin], system, python):
        raise NoWheel(f"{packages.TORCH_CPU} has no {pin} for {SYSTEMS[system].title} with Python {python}.")


def _pip(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*PIP, *arguments], cwd=ROOT, capture_output=True, text=True, encoding="utf-8", errors="replace"
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["pip said nothing"])[-1]


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status: 1 when a pin cannot be had somewhere."""
    parser = argparse.ArgumentParser(prog="python -m utils.setup.wheels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(SYSTEMS)}; without any, all")
    names = parser.parse_args(arguments).systems or list(SYSTEMS)
    if unknown := [name for name in names if name not in SYSTEMS]:
        print(f"wheels: there is no system {unknown[0]!r}. There are: {', '.join(SYSTEMS)}.", file=sys.stderr)
        return 2
    lock, failed = (ROOT / "requirements.lock").read_text(encoding="utf-8"), False
    for name in names:
        for python in PYTHONS:
            pins = needed(lock, name, python)
            wrong = missing(pins, name, python)
            failed |= bool(wrong)
            print(f"wheels: {name}, Python {python}: {' '.join(wrong) or f'all {len(pins)} pins'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
