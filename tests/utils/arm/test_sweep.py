"""Models are compared with the same inputs on both sides; what differs or does not run is in the results."""

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from utils.arm import __main__ as command
from utils.arm import sweep
from utils.models.portable import wrong_on_arm

HERE = [sys.executable, "-P"]  # in place of the emulated processor
WRONG = "import sys, numpy as np; np.savez(sys.argv[4] + '/f32.npz', np.ones((12, 4), np.float32))"


@pytest.fixture
def model(tmp_path) -> Path:
    """y = tanh(x) for x [n, 4]."""
    x = ops.parameter([-1, 4], np.float32)
    ov.save_model(ov.Model([ops.tanh(x)], [x], "model"), tmp_path / "model.xml")
    return tmp_path / "model.xml"


def cached(folder: Path, name: str, age_s: int, *models: str) -> None:
    """A finished conversion, as old as that."""
    (folder / name).mkdir(parents=True)
    for file in ("manifest.json", *models):
        (folder / name / file).parent.mkdir(exist_ok=True)
        (folder / name / file).touch()
    at = (folder / name).stat().st_mtime - age_s
    os.utime(folder / name / "manifest.json", (at, at))


def test_the_latest_of_each_conversion_is_taken(tmp_path):
    cached(tmp_path, "net-fp16-aaaa", 0, "one.xml", "two.xml", "openvino_tokenizer.xml")
    cached(tmp_path, "net-fp16-bbbb", 60, "old.xml")
    cached(tmp_path, "net-int8-cccc", 0, "rank-0/one.xml", "rank-1/one.xml")
    cached(tmp_path, "other-fp32-eeee", 0, "one.xml")
    (tmp_path / "net-fp32-dddd").mkdir()  # without a manifest, it is not finished
    (tmp_path / "net-fp32-dddd" / "one.xml").touch()
    found = dict(sweep.conversions(tmp_path, {"net-fp16", "net-int8", "net-fp32", "net"}))
    assert list(found) == ["net-fp16/one", "net-fp16/two", "net-int8/rank-0/one", "net-int8/rank-1/one"]
    assert found["net-fp16/one"] == tmp_path / "net-fp16-aaaa" / "one.xml"


def test_what_notebooks_build_is_written(tmp_path, monkeypatch):
    x = ops.parameter([-1], np.float32)
    built = {"a / b": lambda: ov.Model([ops.tanh(x)], [x], "built")}
    monkeypatch.setattr(sweep, "cases", lambda: ["other", "toy"])
    monkeypatch.setitem(sys.modules, "notebooks.toy.convert", SimpleNamespace(graphs=lambda: built))
    ((name, path),) = sweep.graphs(tmp_path, {"toy", "toy-fp16"})
    assert name == "toy/a / b" and ov.Core().read_model(path).get_friendly_name() == "built"


def test_the_same_processor_agrees_with_itself(model):
    row = sweep.compare(model, HERE)
    assert row["f32"] == {"result": "agrees", "difference": 0.0}
    assert row["f16"]["result"] == "agrees"


def test_wrong_numbers_differ_and_a_dead_process_does_not_run(model):
    row = sweep.compare(model, [sys.executable, "-c", WRONG])
    assert row["f32"]["result"] == "differs" and row["f32"]["difference"] > 1
    assert row["f16"] == {"result": "does not run", "error": "the process ended with status 0"}
    row = sweep.compare(model, [sys.executable, "-c", "raise SystemExit(3)"])
    assert row["f32"] == {"result": "does not run", "error": "the process ended with status 3"}


def test_an_error_of_openvino_is_in_the_row(model, tmp_path):
    failing = tmp_path / "failing.py"
    failing.write_text(
        "import sys; open(sys.argv[4] + '/f32.txt', 'w').write('At place:1\\n\\n no primitive\\n')", encoding="utf-8"
    )
    row = sweep.compare(model, [sys.executable, failing])
    assert row["f32"] == {"result": "does not run", "error": "no primitive"}


@pytest.mark.parametrize(
    ("ours", "expected", "gap"),
    [
        ([np.float32([1, 2])], [np.float32([1, 4])], 0.5),
        ([np.float32([1, np.nan])], [np.float32([1, 4])], 1.0),
        ([np.float32([1])], [np.float32([1, 4])], 1.0),
        ([np.int64([1, 2, 3, 4])], [np.int64([1, 2, 3, 5])], 0.25),
        ([np.float32([2]), np.int64([1])], [np.float32([2]), np.int64([1])], 0.0),
    ],
)
def test_differences_are_relative(ours, expected, gap):
    assert sweep.difference(ours, expected) == gap


def test_a_difference_at_the_limit_agrees():
    assert sweep.judged(0.001, 0.001) == {"result": "agrees", "difference": 0.001}
    assert sweep.judged(0.00101, 0.001)["result"] == "differs"


def test_rows_of_the_same_openvino_stay(tmp_path):
    path, row = tmp_path / "arm.json", {"f32": {"result": "agrees", "difference": 0.0}}
    sweep.update(path, {"a/one": row}, "qemu")
    sweep.update(path, {"b/one": row}, "qemu")
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert list(stored["models"]) == ["a/one", "b/one"] and stored["label"] == "emulated, correctness only"
    assert stored["openvino"] == metadata.version("openvino")
    path.write_text(json.dumps(stored | {"openvino": "2020.1"}), encoding="utf-8")
    sweep.update(path, {"c/one": row}, "qemu")
    assert list(json.loads(path.read_text(encoding="utf-8"))["models"]) == ["c/one"]


def test_the_smallest_models_have_the_faults_and_their_workarounds(tmp_path):
    models = {name: ov.Core().read_model(path) for name, path in sweep.smallest(tmp_path).items()}
    assert [bool(wrong_on_arm(model)) for model in models.values()] == [True, False] * 3
    random = np.random.default_rng(0)
    numbers, sounds = random.standard_normal((12, 6), np.float32), random.standard_normal((1, 6, 9), np.float32)
    tokens, mask = (random.standard_normal(shape, np.float32) for shape in ((3, 2, 2, 5, 16), (1, 1, 5, 5)))
    masks = [[*tokens, one, np.int32([0, 1])] for one in (mask, np.repeat(mask, 2, axis=0))]
    given = [[numbers], [numbers], [sounds], [sounds], *masks]
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    values = [ov.Core().compile_model(m, "CPU", settings)(x)[0] for m, x in zip(models.values(), given, strict=True)]
    if platform.machine().lower() in ("x86_64", "amd64"):  # on ARM, the first of each pair is wrong
        assert [np.abs(values[i] - values[i + 1]).max() < 1e-5 for i in (0, 2, 4)] == [True] * 3


def test_the_command_writes_the_results_of_each_model(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MODELS_DIR", str(tmp_path / "models"))
    cached(tmp_path / "models" / "ir", "net-fp32-aaaa", 0, "damaged.xml")
    for file in model.parent.glob("model.*"):
        file.rename(tmp_path / "models" / "ir" / "net-fp32-aaaa" / file.name)
    monkeypatch.setattr(command.report, "ARM", tmp_path / "arm.json")
    monkeypatch.setattr(command.report, "on_arm", lambda: {"net-fp32", "net-int8", "smallest"})
    monkeypatch.setattr(command.emulator, "prepare", lambda folder: HERE)
    monkeypatch.setattr(command.emulator, "version", lambda folder: "none")
    command.main(["net"])
    models = json.loads((tmp_path / "arm.json").read_text(encoding="utf-8"))["models"]
    assert list(models) == ["net-fp32/damaged", "net-fp32/model"]
    assert models["net-fp32/damaged"]["f32"]["result"] == models["net-fp32/damaged"]["f16"]["result"] == "untried"
    shown = capsys.readouterr().out
    assert "net-fp32/model: f32 agrees (0.0)" in shown and "net-fp32/damaged: f32 untried (" in shown
    assert "arm: net-int8 is not converted here." in shown
    with pytest.raises(ValueError, match="No README asks for dien. There are: net-fp32, net-int8, smallest."):
        command.main(["dien"])
