"""A tiny notebook run headless: progress, results, verdict, and every way to fail."""

import json
import subprocess
import sys

import nbformat
import pytest

from utils import report, run

ALLOCATED_MB = 200
AUTHORS = {"kernelspec": {"name": "author", "display_name": ""}}  # a kernel that this machine does not have
RESULTS = """from utils import compare, report, select
report.save(
    "toy", model=select.model(["tiny", "released"]).value, device="CPU", speed=[],
    parity=[compare.parity("head", [1.0], [1.0], 0.1)],
    quality=[
        compare.quality("accuracy", "INT8", {value}, 1.0, 0.8, "higher"),
        compare.control("accuracy", "chance", 0.5, 0.8, "higher"),
    ],
)"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """make(*cells) writes the notebook toy (markdown begins with #), returns the arguments of `run`."""
    for variable in ("MODEL", "DEVICE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "standing"))
    folder = tmp_path / "notebooks" / "toy"
    folder.mkdir(parents=True)

    def make(*cells):
        made = [
            nbformat.v4.new_markdown_cell(cell) if cell.startswith("#") else nbformat.v4.new_code_cell(cell)
            for cell in cells
        ]
        book = nbformat.v4.new_notebook(cells=made, metadata=AUTHORS)
        nbformat.write(book, folder / "toy.ipynb")
        return {"case": "toy", "notebooks": tmp_path / "notebooks"}

    return make


def test_a_passing_run(toy, tmp_path, capfd):
    arguments = toy(
        "# Toy",
        "## Set up",
        "from pathlib import Path\nPath('here').write_text('')",
        "",
        "from utils import preflight\nimport math\nassert preflight.in_child(math.factorial, 5) == 120",
        "## Measure",
        RESULTS.format(value=0.9),
    )
    assert run.run(**arguments) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(" ...")[0] for line in lines[:3]] == [
        "[1/3] Set up",
        "[2/3] from utils import preflight",
        "[3/3] Measure",
    ]
    assert all(line.endswith(" s") for line in lines[:3])
    assert lines[-1] == "PASS: toy with model tiny on CPU"
    results = report.load(tmp_path / "standing" / "toy.json")
    assert results["model"] == "tiny" and results["quality"][0]["value"] == 0.9
    assert 0 < results["needs"]["minutes"] < 5 and results["needs"]["memory_gb"] > 0.05  # a kernel takes as much
    assert sorted(path.name for path in (tmp_path / "notebooks" / "toy").iterdir()) == ["here", "toy.ipynb"]


def test_a_failing_verdict_keeps_what_stood(toy, tmp_path, capfd):
    standing = tmp_path / "standing" / "toy.json"
    standing.parent.mkdir()
    standing.write_text("earlier", encoding="utf-8")
    arguments = toy(RESULTS.format(value=0.7))
    assert run.run(**arguments) == 1
    captured = capfd.readouterr()
    assert "FAIL: toy: accuracy at INT8 is 0.7, threshold 0.8 (higher is better)." in captured.err
    assert "PASS" not in captured.out
    output = tmp_path / "new" / "out.json"
    assert run.run(**arguments, output=output, model="released") == 1
    written = json.loads(output.read_text(encoding="utf-8"))
    assert (written["quality"][0]["pass"], written["model"]) == (False, "released")
    assert standing.read_text(encoding="utf-8") == "earlier"


def test_the_memory_of_children_of_children_counts():
    grandchild = f"import time; block = bytearray({ALLOCATED_MB} * 10**6); time.sleep(1.5)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{grandchild}'])"
    with run.PeakMemory() as peak:
        subprocess.run([sys.executable, "-c", child], check=True)
    assert ALLOCATED_MB / 1000 < peak.gb < ALLOCATED_MB / 1000 + 0.1
    with run.PeakMemory() as idle:
        pass
    assert idle.gb == 0


def test_a_cell_that_raises(toy, tmp_path, capfd):
    arguments = toy("# Toy", "1", "## Run", "print('so far')\nraise ValueError('no face found')")
    assert run.run(**arguments, save=tmp_path / "kept.ipynb") == 1
    assert "FAIL: Cell 2 (Run) of toy.ipynb failed: ValueError: no face found" in capfd.readouterr().err
    kept = nbformat.read(tmp_path / "kept.ipynb", as_version=4)
    assert kept.cells[-1].outputs[0].text == "so far\n"
    assert not (tmp_path / "standing").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_kernel_that_dies(toy, capfd):
    arguments = toy("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert run.run(**arguments) == 1
    captured = capfd.readouterr().err
    assert "Cell 1 (import os, signal) of toy.ipynb failed: the kernel died" in captured
    assert "GB are free now" in captured


def test_results_that_are_missing_or_wrong(toy, tmp_path, capfd):
    output = tmp_path / "out.json"
    assert run.run(**toy("1"), output=output) == 1
    assert "toy wrote no results" in capfd.readouterr().err
    broken = "import os, pathlib\npathlib.Path(os.environ['RESULTS_DIR'], 'toy.json').write_text('{}')"
    assert run.run(**toy(broken), output=output) == 1
    assert "break the schema" in capfd.readouterr().err
    assert not output.exists()


def test_usage(toy, capfd):
    arguments = toy("1") | {"case": "wav2vec"}
    assert run.run(**arguments) == 2
    assert "There is no use case 'wav2vec'. There are: toy." in capfd.readouterr().err
    assert run.main(["no_such_case"]) == 2
    with pytest.raises(SystemExit) as usage:
        run.main([])
    assert usage.value.code == 2


def test_the_command_line_reaches_run(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(run, "run", lambda *arguments: given.extend(arguments) or 1)
    assert run.main(["toy", "--model", "released", "--device", "GPU", "--json", "o.json", "--record"]) == 1
    assert [str(value) for value in given] == ["toy", "released", "GPU", "o.json", "None", "True"]
