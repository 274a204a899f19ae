"""An emulated ARM processor: qemu, Debian's Python for ARM, and OpenVINO's wheel for it, unpacked into one folder.

Nothing is installed, and no root is needed. It takes Debian or a descendant (apt-get, dpkg-deb) and 500 MB.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

CPU = "neoverse-n1"  # not "max", whose SVE instructions qemu 7.2 computes wrongly
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)] + ["manylinux2014_aarch64"]
TIMEOUT_S = 900  # of a download


def prepare(folder: Path) -> list[str]:
    """The command to run a Python program on the emulated processor, fetched into `folder` unless it is there.

    Its Python has numpy and OpenVINO, in the versions of this environment. Raises ValueError where this system lacks
    apt-get or dpkg-deb, and where a download fails.
    """
    stamp, host, root = folder / "ready", folder / "host", folder / "root"
    if not found(folder):
        shutil.rmtree(folder, ignore_errors=True)
        _unpack(_run("dpkg", "--print-architecture").strip(), ["qemu-user-static"], host)
        _unpack("arm64", ["python3", "libstdc++6"], root)
        for name in ("lib", "bin"):
            if not (root / name).exists():  # Debian 13 has all in usr
                (root / name).symlink_to(f"usr/{name}")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary=:all:"]
        target = ["--target", folder / "site", "--python-version", python(root).name.removeprefix("python")]
        _run(*pip, *target, *(f"--platform={name}" for name in PLATFORMS), *wheels())
        stamp.write_text(" ".join(wheels()), encoding="utf-8")
    return found(folder)


def found(folder: Path) -> list[str]:
    """The command that `prepare` returns, or nothing where `folder` does not hold this environment's versions yet."""
    stamp, root = folder / "ready", folder / "root"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != " ".join(wheels()):
        return []
    qemu = folder / "host/usr/bin/qemu-aarch64-static"
    settings = ["-cpu", CPU, "-L", root, "-E", f"PYTHONPATH={folder / 'site'}", "-E", "CI=1"]  # CI: no telemetry
    return list(map(str, [qemu, *settings, python(root), "-P"]))


def wheels() -> list[str]:
    """What the emulated Python has, in the versions of this environment."""
    return [f"{name}=={metadata.version(name)}" for name in ("openvino", "numpy")]


def python(root: Path) -> Path:
    """The interpreter of an unpacked system, such as root/usr/bin/python3.11."""
    return min((root / "usr/bin").glob("python3.[0-9]*"))


def version(folder: Path) -> str:
    """The emulator, as results name it."""
    shown = _run(folder / "host/usr/bin/qemu-aarch64-static", "--version").split()
    return f"qemu-aarch64 {shown[shown.index('version') + 1]}, CPU {CPU}"


def _unpack(architecture: str, packages: list[str], target: Path) -> None:
    """Download packages of an architecture with all that they need, by package lists of their own, and unpack them."""
    state = target.with_name(f"apt-{architecture}")
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()  # nothing counts as installed
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",  # of the system's own lists
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
    }
    apt = ["apt-get", "-qq", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    _run(*apt, "update")
    _run(*apt, "install", "--yes", "--download-only", "--no-install-recommends", *packages)
    target.mkdir(parents=True)
    for package in sorted((state / "archives").glob("*.deb")):
        _run("dpkg-deb", "--extract", package, target)
    shutil.rmtree(state)


def _run(*command: str | Path) -> str:
    """What a command prints. Raises ValueError with its last line when it fails or is not there."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_S, encoding="utf-8"
        )
    except FileNotFoundError:
        raise ValueError(f"There is no {name} here. The emulator needs Debian or a descendant of it.") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{name} took more than {TIMEOUT_S} s. Check the connection and run this again.") from None
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise ValueError(f"{name} failed ({reason}). Check the connection and the disk, and run this again.")
    return done.stdout
