"""The emulator is unpacked once, from packages of both systems, and what fails is a sentence."""

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from utils.setup import emulator

WHEELS = [f"{name}=={metadata.version(name)}" for name in ("openvino", "numpy")]


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    """The commands that were run, of which dpkg-deb and pip leave the files that matter."""
    run = []

    def imitate(*command) -> str:
        run.append(list(map(str, command)))
        if "--print-architecture" in run[-1]:
            return "amd64\n"
        if "install" in run[-1] and "--download-only" in run[-1]:
            state = next(part for part in run[-1] if part.startswith("Dir::State=")).partition("=")[2]
            Path(state, "archives", f"{run[-1][-1]}.deb").touch()
        if "dpkg-deb" in run[-1]:
            (Path(run[-1][-1]) / "usr/bin").mkdir(parents=True)
            (Path(run[-1][-1]) / "usr/bin/python3.11").touch()
        return ""

    monkeypatch.setattr(emulator, "_run", imitate)
    return run


def test_it_is_unpacked_once_for_a_version(commands, tmp_path):
    program = emulator.prepare(tmp_path / "arm")
    root = tmp_path / "arm" / "root"
    assert program[0] == str(tmp_path / "arm/host/usr/bin/qemu-aarch64-static")
    assert program[program.index("-L") + 1] == str(root) and program[-2:] == [str(root / "usr/bin/python3.11"), "-P"]
    assert program[program.index("-cpu") + 1] == "neoverse-n1"  # whose results are those of real processors
    (pip,) = (command for command in commands if "pip" in command)
    assert pip[-2:] == WHEELS and pip[pip.index("--python-version") + 1] == "3.11"
    assert "--platform=manylinux_2_28_aarch64" in pip
    architectures = {part for command in commands for part in command if part.startswith("APT::Architecture=")}
    assert architectures == {"APT::Architecture=amd64", "APT::Architecture=arm64"}
    assert (root / "lib").readlink() == Path("usr/lib")
    count = len(commands)
    assert emulator.prepare(tmp_path / "arm") == program and len(commands) == count
    (tmp_path / "arm" / "ready").write_text("openvino==1.0", encoding="utf-8")
    emulator.prepare(tmp_path / "arm")
    assert len(commands) == 2 * count


def test_an_interrupted_unpacking_starts_over(commands, tmp_path):
    (tmp_path / "arm" / "root").mkdir(parents=True)
    (tmp_path / "arm" / "root" / "half").touch()
    emulator.prepare(tmp_path / "arm")
    assert not (tmp_path / "arm" / "root" / "half").exists()


def test_the_version_is_that_of_qemu(monkeypatch, tmp_path):
    monkeypatch.setattr(emulator, "_run", lambda *_: "qemu-aarch64 version 7.2.22 (Debian 1:7.2)\nCopyright")
    assert emulator.version(tmp_path) == "qemu-aarch64 7.2.22, CPU neoverse-n1"


def test_failures_are_sentences(monkeypatch):
    with pytest.raises(ValueError, match="There is no no-such-program here. The emulator needs Debian"):
        emulator._run("no-such-program")
    failed = subprocess.CompletedProcess([], 100, "", "Reading\nE: Unable to fetch\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ValueError, match=r"apt-get failed \(E: Unable to fetch\)\. Check the connection"):
        emulator._run("/usr/bin/apt-get", "update")


def test_it_is_found_only_where_it_was_unpacked_for_these_versions(commands, tmp_path):
    assert emulator.found(tmp_path / "arm") == []
    program = emulator.prepare(tmp_path / "arm")
    assert emulator.found(tmp_path / "arm") == program
    (tmp_path / "arm" / "ready").write_text("openvino==1.0", encoding="utf-8")
    assert emulator.found(tmp_path / "arm") == []
