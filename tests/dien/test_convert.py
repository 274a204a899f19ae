"""The converted graphs: what fuses, what does not, and that INT8 stays close."""

import json
import re
from collections import Counter

import numpy as np
import openvino as ov
import pytest
import torch

from notebooks.dien import pipeline
from notebooks.dien.convert import Fusible, convert, convert_loop, prepare, quantize
from notebooks.dien.pipeline import ClickModel
from tests.dien.conftest import STEPS
from tests.dien.small import EXACT, batch, network, ragged, run
from utils.models.portable import wrong_on_arm
from utils.paths import ROOT


def executed(compiled: ov.CompiledModel) -> Counter:
    """How often the plugin executes each type of operation."""
    return Counter(node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops())


@pytest.mark.parametrize("length", [3, STEPS])
def test_both_recurrences_run_as_one_sequence_each(ir, length):
    kinds = executed(ClickModel(ir, cache=None).compiled(length))
    assert kinds["RNNSeq"] == 2 and kinds["RNNCell"] == kinds["TensorIterator"] == 0


def test_a_plain_trace_does_not_fuse(independent, tmp_path):
    path = convert(independent, tmp_path / "plain.xml", 3, fuse=False)
    kinds = executed(ov.Core().compile_model(path, "CPU", EXACT))
    assert kinds["RNNSeq"] == kinds["RNNCell"] == 0
    inputs = batch([3, 2])
    y_hat = ov.Core().compile_model(path, "CPU", EXACT)(inputs)["y_hat"]
    assert np.abs(y_hat - run(independent, inputs)["y_hat"]).max() < 1e-5


def test_a_loop_takes_any_length(independent, tmp_path):
    compiled = ov.Core().compile_model(convert_loop(independent, tmp_path / "loop.xml"), "CPU", EXACT)
    assert executed(compiled)["TensorIterator"] == 2
    for lengths in ([3, 2], [17, 4, 1]):
        inputs = batch(lengths)
        assert np.abs(compiled(inputs)["y_hat"] - run(independent, inputs)["y_hat"]).max() < 1e-5


@pytest.mark.parametrize("form", ["paper", "gru", "sum"])
def test_the_other_forms_convert_too(form, tmp_path):
    dien = network(evolution=form, independent=True)
    path = convert(dien, tmp_path / "dien.xml", 4)
    inputs = batch([4, 2, 1])
    scores = ClickModel(path, cache=None, **EXACT).score(*ragged(inputs))
    assert np.abs(scores - run(dien, inputs)["y_hat"][:, 0]).max() < 1e-5


def test_converting_leaves_the_network_as_it_was(tmp_path):
    dien, inputs = network(), batch([3, 2])
    before = run(dien, inputs)["y_hat"]
    convert(dien, tmp_path / "dien.xml", 3)
    assert (run(dien, inputs)["y_hat"] == before).all()


def test_int8_stays_close_and_fused_and_is_refused_on_arm(ir, independent, tmp_path, monkeypatch):
    samples = [batch([10, 5, 3, 8] * 4, seed=seed, width=STEPS) for seed in range(8)]
    path = quantize(ir, samples, tmp_path / "int8.xml")
    model = ClickModel(path, cache=None, **EXACT)
    assert executed(model.compiled(STEPS))["RNNSeq"] == 2
    inputs = batch([10, 5, 3, 8] * 8, seed=99)
    difference = np.abs(model.score(*ragged(inputs)) - run(independent, inputs)["y_hat"][:, 0])
    assert 0 < difference.mean() < 0.03
    monkeypatch.setattr(pipeline, "ON_ARM", True)
    for device in ("CPU", "AUTO"):
        with pytest.raises(ValueError, match=r"int8\.xml is in INT8, whose scores are wrong on ARM .*Give .* FP32"):
            ClickModel(path, device, cache=None)
    ClickModel(ir, cache=None)


def test_bad_arguments_are_sentences(tmp_path):
    with pytest.raises(ValueError, match="at least 1 and an .xml file, not 0"):
        convert(network(), tmp_path / "dien.xml", 0)
    with pytest.raises(ValueError, match="not 5 and dien.onnx"):
        convert(network(), tmp_path / "dien.onnx", 5)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="There is no INT4 of 'tiny'"):
        prepare("tiny", "INT4")


def test_what_the_notebook_quotes_is_in_the_modules():
    folder = ROOT / "notebooks" / "dien"
    cells = json.loads((folder / "dien.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    blocks = [block for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if "copy from" not in block]
    modules = [(folder / name).read_text(encoding="utf-8").splitlines() for name in ("convert.py", "pipeline.py")]
    source = {line.strip() for module in modules for line in module}
    assert len(blocks) == 3
    assert not [line for block in blocks for line in block.splitlines() if line.strip() not in source | {""}]


@pytest.mark.parametrize("form", ["fused", "batch statistics", "plain", "loop"])
def test_no_operation_is_computed_wrongly_on_arm(form, ir, reference_ir, independent, tmp_path):
    if form == "plain":
        path = convert(independent, tmp_path / "plain.xml", 3, fuse=False)
    elif form == "loop":
        path = convert_loop(independent, tmp_path / "loop.xml")
    else:
        path = ir if form == "fused" else reference_ir
    assert wrong_on_arm(ov.Core().read_model(path)) == []


def test_a_history_without_items_ends_in_zeros(independent):
    seq_len = torch.tensor([3, 0])
    evolved = torch.randn(2, 3, 36)
    state = Fusible.of(independent).last_state(evolved, seq_len)
    assert (state == torch.stack([evolved[0, 2], torch.zeros(36)])).all()
