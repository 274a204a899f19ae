"""Which interpreters the matrix finds, and what it says of steps that fail; the matrix itself runs weekly."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from utils.paths import ROOT
from utils.setup import matrix

HERE = "{}.{}".format(*sys.version_info)


@pytest.fixture
def git(tmp_path, monkeypatch) -> Path:
    """A repository with one committed file, which is taken for this one."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]
    (tmp_path / "committed.txt").write_text("", encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    subprocess.run([*command, "commit", "-q", "-m", "first"], cwd=tmp_path, check=True)
    (tmp_path / "draft.txt").write_text("", encoding="utf-8")
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    return tmp_path


def test_an_interpreter_must_run_and_have_the_version(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, "candidates", lambda python: [Path(sys.executable)])
    assert matrix.interpreter(HERE) == Path(sys.executable)
    assert matrix.interpreter("2.7") is None


def test_pyenv_and_uv_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix.shutil, "which", lambda name: None)
    monkeypatch.setattr(matrix.Path, "home", lambda: tmp_path)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "env"))
    places = [tmp_path / "env/versions/3.12.1", tmp_path / ".local/share/uv/python/cpython-3.12.4-linux"]
    for place in places:
        (place / "bin").mkdir(parents=True)
        (place / "bin/python3.12").touch()
    assert list(matrix.candidates("3.12")) == [place / "bin/python3.12" for place in places]
    assert list(matrix.candidates("3.13")) == []


def test_steps_run_in_a_clone_until_one_fails(git, tmp_path, monkeypatch, capsys):
    see = "import os, sys; print(sorted(x for x in os.listdir() if x != '.git')); sys.exit(len(sys.argv) - 1)"
    run = [sys.executable, "-c", see]
    monkeypatch.setattr(matrix, "steps", lambda program: {"one": run, "step two": [*run, "fails"], "three": run})
    outcomes = matrix.examine(Path(sys.executable), tmp_path / "logs")
    assert [(name, outcome["passed"]) for name, outcome in outcomes.items()] == [("one", True), ("step two", False)]
    assert outcomes["one"]["last line"] == "['committed.txt']" and outcomes["one"]["seconds"] >= 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("  one: passed") and lines[0].endswith("['committed.txt']")
    assert lines[1].startswith("  step two: FAILED") and len(lines) == 4
    log = tmp_path / "logs/step-two.txt"
    assert lines[3] == f"  All of its output is in {log}." and log.read_text(encoding="utf-8").strip() in lines[2]


def test_a_missing_interpreter_fails(tmp_path, monkeypatch, capsys):
    passed = {"set-up": {"passed": True, "seconds": 1, "last line": ""}}
    monkeypatch.setattr(matrix, "RESULTS", tmp_path / "pythons.json")
    monkeypatch.setattr(matrix, "interpreter", lambda python: Path("python") if python == "3.12" else None)
    monkeypatch.setattr(matrix, "examine", lambda program, logs: passed)
    assert matrix.main(["3.12"]) == 0
    assert matrix.main(["3.12", "3.13"]) == 1
    assert "matrix: Python 3.13: not found on this machine" in capsys.readouterr().out
    ((_, pythons),) = json.loads((tmp_path / "pythons.json").read_text(encoding="utf-8")).items()
    assert list(pythons) == ["3.12"] and pythons["3.12"]["steps"] == passed


def test_a_failed_step_fails(tmp_path, monkeypatch):
    failed = {"set-up": {"passed": False, "seconds": 1, "last line": "no disk"}}
    monkeypatch.setattr(matrix, "RESULTS", tmp_path / "pythons.json")
    monkeypatch.setattr(matrix, "interpreter", lambda python: Path("python"))
    monkeypatch.setattr(matrix, "examine", lambda program, logs: failed)
    assert matrix.main(["3.12"]) == 1


def test_outcomes_of_other_systems_and_pythons_stay(tmp_path, monkeypatch):
    path = tmp_path / "pythons.json"
    for system, python, line in (("linux", "3.12", "a"), ("windows", "3.12", "b"), ("linux", "3.11", "c"),
                                 ("linux", "3.12", "d")):  # fmt: skip
        monkeypatch.setattr(matrix, "here", lambda system=system: system)
        matrix.record(python, {"set-up": {"passed": True, "seconds": 1, "last line": line}}, path)
    stored = json.loads(path.read_text(encoding="utf-8"))
    found = {system: {python: one["steps"]["set-up"]["last line"] for python, one in own.items()}
             for system, own in stored.items()}  # fmt: skip
    assert found == {"Linux on x86-64": {"3.11": "c", "3.12": "d"}, "Windows on x86-64": {"3.12": "b"}}
    assert list(found["Linux on x86-64"]) == ["3.11", "3.12"]


def test_the_steps_name_what_exists():
    steps = matrix.steps(Path("python3.12"))
    assert all((ROOT / name).exists() for name in matrix.TESTS) and list(steps)[0] == "set-up"
    assert (ROOT / "notebooks" / matrix.NOTEBOOK / f"{matrix.NOTEBOOK}.ipynb").is_file()
