"""A conversion is built once, whole, and again when anything it depends on changes."""

import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from filelock import FileLock

from utils import convert, paths, preflight, sources

without_fork = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELS_DIR", str(tmp_path / "models"))
    return paths.models_dir()


class Build:
    """Writes an IR's two files and counts how often it had to."""

    def __init__(self):
        self.count = 0

    def __call__(self, folder: Path):
        self.count += 1
        (folder / "deep").mkdir()
        (folder / "model.xml").write_text(f"<net {self.count}/>", encoding="utf-8")
        (folder / "deep" / "model.bin").write_bytes(bytes(1000))


def build_slowly(folder: Path):
    (folder / "model.bin").write_bytes(bytes(10))
    (folder.parent / f"built-by-{os.getpid()}").touch()
    time.sleep(0.5)


def build_for_ever(folder: Path):
    (folder / "model.bin").write_bytes(bytes(10))
    (folder.parent / "midway").touch()
    time.sleep(60)


def copy_file(source, folder: Path):
    shutil.copy(source, folder / "copy")


def convert_in_a_process(build, results):
    results.put(str(convert.cached("net", checkpoint="abc")(build)()))


def start(build):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=convert_in_a_process, args=(build, results))
    process.start()
    return process, results


def test_built_once_and_found_again(models):
    build = Build()
    folder = convert.cached("net-int8", checkpoint="abc")(build)()
    assert folder.parent == models / "ir" and folder.name.startswith("net-int8-") and len(folder.name) == 9 + 12
    assert (folder / "model.xml").read_text(encoding="utf-8") == "<net 1/>"
    assert convert.cached("net-int8", checkpoint="abc")(build)() == folder
    assert build.count == 1
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["files"]["deep/model.bin"] == {
        "size": 1000,
        "sha256": hashlib.sha256(bytes(1000)).hexdigest(),
    }
    assert set(manifest["files"]) == {"model.xml", "deep/model.bin"}
    assert manifest["inputs"]["checkpoint"] == "abc"


def test_everything_it_depends_on_changes_the_folder(monkeypatch):
    build = Build()
    versions = {"openvino": "1", "nncf": "2"}
    monkeypatch.setattr(convert, "_version", lambda package: versions.get(package))

    def ask(checkpoint="abc", **arguments):
        return convert.cached("net", checkpoint=checkpoint, arguments=arguments)(build)()

    folders = [ask(), ask(checkpoint="abd"), ask(bits=4), ask(bits=8), ask(names=("a", "b"))]
    versions["nncf"] = "3"
    folders += [ask(), convert.cached("net", checkpoint="abc", versions=("openvino",))(build)()]
    assert len(set(folders)) == build.count == 7
    versions["nncf"] = "2"
    assert [ask(), ask(names=["a", "b"])] == [folders[0], folders[4]]
    assert build.count == 7


def test_code_that_converts_changes_the_folder_and_other_code_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)

    def written(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        sources.imported.cache_clear()

    def ask(code=None):
        return convert.cached("net", checkpoint="abc", code=code)(build)()

    build, other = Build(), Build()
    build.__module__, other.__module__ = "converter", "unrelated"
    written("converter", "def to_ir():\n    from layers import mask\n    import numpy\n")
    written("layers", "import converter\nmask = False\n")
    written("unrelated", "")
    first = ask()
    written("unrelated", "changed = True\n")
    assert ask() == first and build.count == 1
    written("layers", "import converter\nmask = 0.0\n")
    second = ask()
    assert second != first
    written("converter", (tmp_path / "converter.py").read_text(encoding="utf-8") + "    import openvino\n")
    unrelated = ask(other)
    assert len({first, second, ask(), unrelated}) == 4
    written("layers", "import converter\nmask = False\n")
    assert ask() != first and ask(other) == unrelated and build.count == 5


def test_the_key_sees_relative_imports_and_packages():
    """INT8 of SAMBERT is calibrated on sentences that go through its front end, which is reached relatively."""
    found = sources.reachable("notebooks.sambert_hifigan.convert.voice")
    leaves = {name.rpartition(".")[2] for name in found if name.startswith("notebooks.sambert_hifigan.")}
    assert leaves >= {"normalise", "readings", "lexicon"}


def test_a_checkpoint_is_known_by_its_contents(tmp_path):
    build = Build()
    checkpoint = tmp_path / "weights.safetensors"

    def ask(contents):
        checkpoint.write_bytes(contents)
        return convert.cached("net", checkpoint=checkpoint)(build)()

    first = ask(b"one")
    assert ask(b"two") != first and ask(b"one") == first and build.count == 2
    assert convert.cached("net", checkpoint=str(checkpoint))(build)() == first
    assert convert.cached("net", checkpoint=hashlib.sha256(b"one").hexdigest())(build)() == first
    with pytest.raises(ValueError, match="missing.gguf does not exist"):
        convert.cached("net", checkpoint=tmp_path / "missing.gguf")(build)()


def test_a_folder_counts_by_names_and_contents_without_hidden_files(tmp_path):
    folder = tmp_path / "checkpoint"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_text("1", encoding="utf-8")
    (folder / "sub" / "b").write_text("2", encoding="utf-8")
    first = convert.checkpoint_sha256(folder)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "etag").write_text("x", encoding="utf-8")
    (folder / ".receipt.json").write_text("{}", encoding="utf-8")
    assert convert.checkpoint_sha256(folder) == first
    (folder / "a").write_text("2", encoding="utf-8")
    changed = convert.checkpoint_sha256(folder)
    (folder / "a").rename(folder / "c")
    assert len({first, changed, convert.checkpoint_sha256(folder)}) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty folder"):
        convert.checkpoint_sha256(tmp_path / "empty")


def test_the_receipt_of_a_download_saves_hashing_until_a_file_is_touched(models, monkeypatch):
    file = models / "checkpoints" / "net" / "sub" / "weights.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    receipt = models / "checkpoints" / "net" / ".receipt.json"
    receipt.write_text(json.dumps({"files": {"sub/weights.gguf": {"size": 7, "sha256": "recorded"}}}), encoding="utf-8")
    assert convert.checkpoint_sha256(file) == "recorded"
    by_receipt = convert.checkpoint_sha256(file.parent.parent)
    later = receipt.stat().st_mtime_ns + 10**9
    file.write_bytes(b"weightz")
    os.utime(file, ns=(later, later))
    assert convert.checkpoint_sha256(file) == hashlib.sha256(b"weightz").hexdigest()
    assert convert.checkpoint_sha256(file.parent.parent) != by_receipt


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.xml").unlink(),
        lambda folder: (folder / "deep" / "model.bin").write_bytes(bytes(999)),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text('{"inputs"', encoding="utf-8"),
        lambda folder: (folder / "manifest.json").write_text("[]", encoding="utf-8"),
        lambda folder: shutil.rmtree(folder),
    ],
)
def test_a_damaged_folder_is_redone(damage):
    build = Build()
    folder = convert.cached("net", checkpoint="abc")(build)()
    damage(folder)
    assert convert.cached("net", checkpoint="abc")(build)() == folder
    assert build.count == 2
    assert (folder / "model.xml").read_text(encoding="utf-8") == "<net 2/>"
    assert (folder / "deep" / "model.bin").stat().st_size == 1000


def test_files_added_later_do_no_harm():
    build = Build()
    folder = convert.cached("net", checkpoint="abc")(build)()
    (folder / "cache.blob").write_text("compiled", encoding="utf-8")
    assert convert.cached("net", checkpoint="abc")(build)() == folder and build.count == 1


def test_a_failing_build_leaves_nothing(models):
    def build(folder):
        (folder / "model.bin").write_bytes(bytes(10))
        raise RuntimeError("out of patience")

    with pytest.raises(RuntimeError, match="out of patience"):
        convert.cached("net", checkpoint="abc")(build)()
    assert [path.name for path in (models / "ir").iterdir() if not path.name.endswith(".lock")] == []
    with pytest.raises(RuntimeError, match="wrote no file"):
        convert.cached("net", checkpoint="abc")(lambda folder: None)()
    build = Build()
    convert.cached("net", checkpoint="abc")(build)()
    assert build.count == 1


def test_a_conversion_killed_midway_is_redone(models):
    process, _ = start(build_for_ever)
    try:
        deadline = time.monotonic() + 30
        while not (models / "ir" / "midway").exists():
            assert time.monotonic() < deadline and process.is_alive()
            time.sleep(0.02)
    finally:
        process.kill()
        process.join()
    left = [path.name for path in (models / "ir").iterdir() if path.is_dir()]
    assert len(left) == 1 and left[0].endswith(".partial")
    build = Build()
    folder = convert.cached("net", checkpoint="abc")(build)()
    assert build.count == 1 and (folder / "model.xml").is_file()
    assert [path.name for path in (models / "ir").iterdir() if path.is_dir()] == [folder.name]


def test_two_processes_build_once(models):
    running = [start(build_slowly) for _ in range(2)]
    folders = {results.get(timeout=30) for _, results in running}
    for process, _ in running:
        process.join(30)
        assert process.exitcode == 0
    assert len(folders) == 1
    assert len(list((models / "ir").glob("built-by-*"))) == 1


@pytest.mark.parametrize("method", ["", "spawn", pytest.param("fork", marks=without_fork)])
def test_a_plain_script_converts_whatever_its_start_method(method, tmp_path):
    """The child must not run the script again, which converts at the top level."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "import sys\n"
        "from pathlib import Path\n"
        f"sys.path.append({str(paths.ROOT)!r})\n"
        "import steps\n"
        "from utils import convert\n"
        f"multiprocessing.set_start_method({method!r} or None)\n"
        "print('the script runs')\n"
        "folder = convert.cached_in_child('net', steps.write, 'IR', checkpoint='abc', arguments={'text': 'IR'})\n"
        "print((folder / 'model.xml').read_text())\n",
        encoding="utf-8",
    )
    (tmp_path / "steps.py").write_text(
        "def write(text, folder):\n    print('the step prints')\n    (folder / 'model.xml').write_text(text)\n",
        encoding="utf-8",
    )
    elsewhere = tmp_path / "elsewhere"  # whose `utils` must not be taken for ours
    (elsewhere / "utils").mkdir(parents=True)
    (elsewhere / "utils" / "__init__.py").write_text("raise ImportError('a foreign package')\n", encoding="utf-8")
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, script], cwd=elsewhere, capture_output=True, text=True, timeout=300, encoding="utf-8"
        )
        assert (done.returncode, done.stdout) == (0, "the script runs\nIR\n"), done.stderr
        assert ("the step prints" in done.stderr) == ("Making net ..." in done.stderr)
    assert "Making net" not in done.stderr


def test_a_conversion_in_a_child_needs_memory_and_disk(monkeypatch):
    asked = []
    monkeypatch.setattr(preflight, "check", lambda **needs: asked.append(needs))
    folder = convert.cached_in_child("net", copy_file, __file__, checkpoint="abc", ram_gb=0.5)
    assert (folder / "copy").read_bytes() == Path(__file__).read_bytes()
    assert asked[0] == {"ram_gb": 0.5, "disk_gb": 0.25, "what": "Making net"}
    assert convert.cached_in_child("net", copy_file, "another", checkpoint="abc") == folder
    convert.cached_in_child("net", copy_file, __file__, checkpoint=Path(__file__))
    disks = [needs["disk_gb"] for needs in asked if "disk_gb" in needs]  # the child asks for memory only
    assert disks == [0.25, Path(__file__).stat().st_size / 1e9]  # what is converted is as large as the checkpoint


def test_unfinished_siblings_go_unless_somebody_builds_them(models):
    stale, busy = (models / "ir" / f"net-{key * 12}.partial" for key in "ab")
    for folder in (stale, busy):
        folder.mkdir(parents=True)
    with FileLock(models / "ir" / f".net-{'b' * 12}.lock"):
        convert.cached("net", checkpoint="abc")(Build())()
    assert not stale.exists() and busy.exists()


def test_refusals():
    for name in ("", "../net", "net int8", ".net"):
        with pytest.raises(ValueError, match="cannot name a conversion"):
            convert.cached(name, checkpoint="abc")(Build())()
    with pytest.raises(ValueError, match="arguments of net must be JSON values"):
        convert.cached("net", checkpoint="abc", arguments={"bits": {4}})(Build())()


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """Runs the text of a notebook's cell and returns the value of its last line."""
    from IPython.core.interactiveshell import InteractiveShell

    kernel = ModuleType("__main__")
    shell = InteractiveShell(user_module=kernel, user_ns=vars(kernel))
    monkeypatch.chdir(tmp_path)

    def run(text):
        result = shell.run_cell(text, silent=False)
        result.raise_error()
        return result.result

    run("from pathlib import Path\nfrom utils.convert import cached\nruns = []")
    return run


BODY = """
@cached("net", checkpoint="abc")
def fill(folder, bits=8):
    runs.append(bits)  # a comment
    write(folder / "net.xml", TEXT)

fill({options})
"""
WRITE = "def write(path, text):\n    path.write_text(text)\n"


def test_a_function_in_a_cell_is_its_own_key(cell):
    """Its text counts without comments, and so do options, values and functions that it uses."""
    cell('TEXT = "net"\nunrelated = 1\n' + WRITE)
    body = BODY.replace("    runs.append(bits)", "    Path('runs').open('a').write('x')")
    first = cell(body.format(options=""))
    assert (first / "net.xml").read_text(encoding="utf-8") == "net"
    cell("unrelated = 2")
    assert cell(body.format(options="").replace("  # a comment", "\n    # another")) == first
    assert Path("runs").read_text(encoding="utf-8") == "x"
    folders = [first, cell(body.format(options="bits=4")), cell('TEXT = "other"\n' + body.format(options=""))]
    folders.append(cell(body.format(options="").replace("net.xml", "model.xml")))
    cell("def write(path, text):\n    path.write_text(text + text)\n")
    folders.append(cell(body.format(options="")))
    assert len(set(folders)) == 5 and Path("runs").read_text(encoding="utf-8") == 5 * "x"
    assert (folders[-1] / "net.xml").read_text(encoding="utf-8") == "otherother"


def test_a_cell_depends_on_the_files_and_modules_that_it_uses(cell, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"1")
    body = (
        'from utils.models.tensors import listed\ndata = Path("data.bin")\n\n'
        '@cached("net", checkpoint="abc")\ndef fill(folder):\n'
        '    (folder / listed(["copy"])).write_bytes(data.read_bytes())\n\nfill()'
    )
    first = cell(body)
    used = sources.used(cell("fill").__wrapped__)
    assert "utils.models.tensors" in used.modules and set(used.values) == {"data"}
    (tmp_path / "data.bin").write_bytes(b"2")
    assert cell(body) != first


def test_a_class_in_a_cell_counts_with_its_methods(cell):
    text = "SIZE = {size}\n\nclass Base:\n    scale = 1\n\nclass Net(Base):\n"
    text += "    def __init__(self):\n        self.{field} = 1\n\n"
    text += "    def save(self, path):\n        path.write_text(str({scale} * SIZE))\n\n"
    text += '@cached("net", checkpoint="abc")\ndef fill(folder):\n    Net().save(folder / "net.xml")\n\nfill()'
    sizes = [(1, 1, "a"), (2, 1, "a"), (2, 1, "a"), (2, 1, "b"), (2, 4, "b")]
    folders = [cell(text.format(size=size, scale=scale, field=field)) for size, scale, field in sizes]
    assert [(folder / "net.xml").read_text(encoding="utf-8") for folder in folders] == ["1", "2", "2", "2", "8"]
    assert folders[1] == folders[2] and len(set(folders)) == 4
    cell("Base.scale = 2")
    assert cell("fill()") != folders[-1]
