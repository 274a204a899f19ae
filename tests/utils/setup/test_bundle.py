"""Bundling, unpacking and the set-up from a bundle with the network cut, on a toy of the repository."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.utils.setup import small
from utils.setup import bundle, env, manifest, offline, start_here

VENV_PYTHON = env.VENV_PYTHON.relative_to(env.ROOT)


def run(module: str, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """Run a module of the toy in `folder`, with pip seeing nothing but what `variables` name."""
    kept = {x: y for x, y in os.environ.items() if not x.startswith("PIP_") and x != "WHEELS"}
    variables = {**kept, "PIP_CONFIG_FILE": os.devnull, "CHROMIUM": sys.executable, **variables}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, encoding="utf-8"
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> tuple[Path, Path]:
    """The toy repository, with a checkpoint and files that must stay at home, and its folder of wheels."""
    folder = tmp_path_factory.mktemp("toy")
    root = small.repository(folder / "repository")
    (root / "private.txt").write_text("not tracked", encoding="utf-8")
    (root / "models/checkpoints").mkdir(parents=True)
    (root / "models/checkpoints/tiny.bin").write_bytes(b"weights")
    (root / "models/ir/.under-way").mkdir(parents=True)
    (root / "models/ir/.under-way/half.bin").write_bytes(b"half")
    return root, small.wheels(folder / "wheels")


@pytest.fixture(scope="module")
def archive(source, tmp_path_factory) -> Path:
    root, wheels = source
    output = tmp_path_factory.mktemp("dist") / "toy.tar"
    done = run("utils.setup.bundle", root, "--output", str(output), PIP_NO_INDEX="1", PIP_FIND_LINKS=wheels.as_uri())
    assert done.returncode == 0, done.stderr
    assert list(output.parent.iterdir()) == [output]
    return output


@pytest.fixture
def unpacked(archive, tmp_path) -> Path:
    shutil.unpack_archive(archive, tmp_path, filter="data")
    return tmp_path / "toy"


def test_archive_holds_what_it_should(archive) -> None:
    with tarfile.open(archive) as packed:
        members = {x.name.removeprefix("toy/"): x for x in packed.getmembers()}
        contents = json.load(packed.extractfile("toy/bundle/manifest.json"))
    wheels = sorted(x.split("/")[-1].split("-")[0] for x in members if x.startswith("bundle/wheels/"))
    assert wheels == ["pip", "setuptools", "toy", "toy_model"]
    assert {"requirements.txt", "utils/setup/env.py", "models/checkpoints/tiny.bin", "START_HERE.html"} <= set(members)
    assert not [x for x in members if ".git" in x or "private" in x or "half" in x]
    assert {x.uname for x in members.values()} == {""}
    assert {x: contents[x] for x in ("platform", "python")} == manifest.machine()
    assert set(contents["files"]) == {x for x in members if x.startswith(("bundle/wheels/", "models/"))}


def test_what_must_not_be_passed_on_is_packed_only_when_asked_for(source, archive, tmp_path) -> None:
    root, wheels = source
    guarded = ["models/checkpoints/guarded/weights.bin", "models/ir/case-released-fp16-1/model.bin"]
    kept = "models/ir/case-tiny-fp16-1/model.bin"
    for name in [*guarded, kept]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"weights")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels.as_uri()}
    for option, packed in (((), set()), (("--restricted",), {*guarded, "bundle/wheels/guarded_model"})):
        output = tmp_path / f"{len(option)}.tar"
        done = run("utils.setup.bundle", root, "--output", str(output), *option, **index)
        assert done.returncode == 0, done.stderr
        assert ("without guarded, whose licences forbid" in done.stdout) == (not option)
        with tarfile.open(output) as opened:
            members = [name.partition("/")[2].removesuffix("-3.0-py3-none-any.whl") for name in opened.getnames()]
        assert kept in members and {x for x in members if x in guarded or "guarded_model" in x} == packed
    for name in [*guarded, kept]:
        (root / name).unlink()


def test_a_bundle_for_another_system_has_its_wheels_and_commands(source, tmp_path) -> None:
    root, wheels = source
    native = wheels / "toy-1.0-cp312-cp312-win_amd64.whl"
    shutil.copy(wheels / "toy-1.0-py3-none-any.whl", native)
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels.as_uri()}
    output = tmp_path / "other.tar"
    done = run("utils.setup.bundle", root, "--system", "windows", "--python", "3.12", "--output", str(output), **index)
    native.unlink()
    assert done.returncode == 0, done.stderr
    shutil.unpack_archive(output, tmp_path, filter="data")
    packed = {x.name for x in (tmp_path / "other/bundle/wheels").iterdir()}
    assert native.name in packed and "toy-1.0-py3-none-any.whl" not in packed
    page = (tmp_path / "other/START_HERE.html").read_text(encoding="utf-8")
    assert "Windows on x86-64" in page and "Python 3.12" in page and "guarded" in page
    assert r".venv\Scripts\python -m jupyter lab --ServerApp.ip=127.0.0.1" in page
    with pytest.raises(ValueError, match="made for platform windows"):
        manifest.check(tmp_path / "other")


def test_the_page_names_a_python_program_of_its_system() -> None:
    page = start_here.page("macos", "3.13", 2_350_000_000, [])
    assert "2.4 GB" in page and "python3.13 -m utils.setup.env\n.venv/bin/python -m jupyter lab" in page
    assert "What is missing" not in page and "macOS on Apple silicon" in page


def test_setup_from_a_bundle_needs_no_network(unpacked) -> None:
    command = (sys.executable, "-m", "utils.setup.env")
    guard = {"PYTHONPATH": os.pathsep.join([str(offline.GUARD), str(env.ROOT)])}
    done = run("utils.setup.env", unpacked, **guard)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "env: ready"
    python = unpacked / VENV_PYTHON
    said = subprocess.run(
        [python, "-c", "import toy; print(toy.VALUE)"], capture_output=True, text=True, encoding="utf-8"
    )
    assert said.stdout == "42\n"
    assert (unpacked / "models/checkpoints/wheels.txt").read_text(encoding="utf-8") == str(unpacked / "bundle/wheels")

    again = run("utils.setup.env", unpacked)
    assert (again.returncode, again.stdout) == (0, "env: ready\n"), command

    (unpacked / ".venv/.ready").write_text("unfinished", encoding="utf-8")
    (unpacked / ".venv/left-over").write_text("of an interrupted set-up", encoding="utf-8")
    redone = run("utils.setup.env", unpacked, **guard)
    assert redone.returncode == 0, redone.stderr
    assert not (unpacked / ".venv/left-over").exists()


def test_bundle_of_another_python_is_refused(unpacked) -> None:
    file = unpacked / "bundle/manifest.json"
    contents = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**contents, "python": "2.7"}), encoding="utf-8")
    done = run("utils.setup.env", unpacked)
    assert done.returncode == 1
    assert "This bundle was made for python 2.7" in done.stderr
    assert not (unpacked / ".venv").exists()
    file.write_text(json.dumps({**contents, "platform": "abacus"}), encoding="utf-8")
    with pytest.raises(ValueError, match="made for platform abacus"):
        manifest.check(unpacked)


def test_damaged_bundle_is_refused(unpacked) -> None:
    assert manifest.check(unpacked) == "5 files as they were packed"
    wheel = next((unpacked / "bundle/wheels").glob("toy-*"))
    wheel.write_bytes(wheel.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"toy-1\.0-py3-none-any\.whl is damaged"):
        manifest.check(unpacked)
    wheel.unlink()
    with pytest.raises(ValueError, match=r"lacks bundle/wheels/toy-1\.0-py3-none-any\.whl"):
        manifest.check(unpacked)
    (unpacked / "bundle/manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="no readable manifest"):
        manifest.check(unpacked)


def test_failure_leaves_the_earlier_archive_and_nothing_else(source, tmp_path) -> None:
    output = tmp_path / "toy.tar"
    output.write_text("an earlier bundle", encoding="utf-8")
    done = run("utils.setup.bundle", source[0], "--output", str(output), PIP_NO_INDEX="1")
    assert done.returncode == 1
    assert "The wheels could not be collected" in done.stderr
    assert [x.name for x in tmp_path.iterdir()] == ["toy.tar"]
    assert output.read_text(encoding="utf-8") == "an earlier bundle"


def test_disk_too_small_is_reported_first(source, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 0, 10**9))
    with pytest.raises(OSError, match=r"A bundle needs 4\.0 GB in .* 1\.0 GB are free"):
        bundle.build(tmp_path / "toy.tar", source[0])
    assert not list(tmp_path.iterdir())


def test_outside_a_clone_nothing_is_packed(tmp_path) -> None:
    with pytest.raises(ValueError, match="is no git clone"):
        bundle.build(tmp_path / "toy.tar", tmp_path)
