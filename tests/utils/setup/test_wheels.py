"""Whether each pin has a wheel for another system, asked of an index that is a folder of toy packages."""

import os
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.utils.setup import small
from utils.setup import packages, wheels

SETUP = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n[project]\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Wheels of `toy`, a wheel of `native` for Windows and Python 3.12, and the sources of `plain`."""
    folder = small.wheels(tmp_path_factory.mktemp("index") / "wheels")
    native = small.write_wheel(folder, "native", "1.0", {"native.py": b"VALUE = 1\n"})
    native.rename(folder / "native-1.0-cp312-cp312-win_amd64.whl")
    texts = {"pyproject.toml": SETUP + 'name = "plain"\nversion = "1.0"\n', "plain.py": "VALUE = 1\n"}
    texts["PKG-INFO"] = "Metadata-Version: 2.1\nName: plain\nVersion: 1.0\n"
    with tarfile.open(folder / "plain-1.0.tar.gz", "w:gz") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"plain-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, BytesIO(text.encode()))
    return folder


@pytest.fixture
def index(folder, monkeypatch) -> Path:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    return folder


def test_wheels_of_a_system_are_downloaded_and_pure_ones_built(index, tmp_path):
    wheels.collect(["toy==1.0", "native==1.0", "plain==1.0"], "windows", "3.12", tmp_path)
    names = ["native-1.0-cp312-cp312-win_amd64.whl", "plain-1.0-py3-none-any.whl", "toy-1.0-py3-none-any.whl"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert wheels.missing(["toy==1.0", "plain==1.0"], "macos", "3.11") == []


@pytest.mark.parametrize(("system", "python"), [("windows", "3.13"), ("macos", "3.12"), ("linux-arm", "3.12")])
def test_a_pin_without_a_wheel_is_named(index, system, python):
    (sentence,) = wheels.missing(["toy==1.0", "native==1.0"], system, python)
    assert sentence.startswith("native==1.0 has no wheel and cannot be built: ")


def test_the_cuda_build_of_torch_is_not_packed(index, tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "cpu_index_answers", lambda: False)
    with pytest.raises(wheels.NoWheel, match="torch==1.0 for Linux on ARM comes from .* only a CUDA build"):
        wheels.collect(["torch==1.0"], "linux-arm", "3.12", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_asks_for_each_python(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(wheels, "missing", lambda pins, *target: asked.append(target) or ["no"] * (target[1] == "3.13"))
    assert wheels.main(["windows"]) == 1
    assert asked == [("windows", "3.11"), ("windows", "3.12"), ("windows", "3.13")]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("wheels: windows, Python 3.11: all ") and lines[2].endswith("Python 3.13: no")
    assert wheels.main(["abacus"]) == 2 and "There are: linux, linux-arm" in capsys.readouterr().err
