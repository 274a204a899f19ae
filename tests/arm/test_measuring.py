"""Runs on the emulated processor: live where it is, stored elsewhere; what is stored belongs to the models of today."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from notebooks.arm import convert, data, measuring, pipeline
from utils import compare, paths
from utils.setup import emulator

HERE = [sys.executable, "-P"]  # in place of the emulated processor
PROGRAM = emulator.found(paths.models_dir() / "arm")  # where set-up has not fetched it, the tests below take HERE

PAIRS = (  # what is wrong on ARM, and its workaround
    ("gate as written", "gate right on ARM"),
    ("product with a converted boolean", "choice by a boolean"),
    ("transposed convolution along one axis", "transposed convolution lifted to two axes"),
    ("attention whose rows share a mask", "attention with a mask for each row"),
)


@pytest.fixture
def without_emulator(monkeypatch, tmp_path):
    monkeypatch.setenv("MODELS_DIR", str(tmp_path))


@pytest.fixture(scope="module")
def here() -> pipeline.Run:
    return pipeline.run(convert.gate(True), [data.noisy()], "f32")


def test_what_is_stored_is_of_the_models_of_today(without_emulator, tmp_path):
    for name, model, inputs, precisions in measuring.examples(tmp_path):
        here = pipeline.run(model, inputs, "f32")
        for precision in precisions:
            run = measuring.on_arm(name, model, here, precision)
            assert "emulated" in run.processor and f"stored on {run.date}" in run.processor


def test_what_is_stored_of_another_model_or_of_other_inputs_is_an_error(without_emulator, here):
    other = convert.gate()
    with pytest.raises(ValueError, match="of another model or other inputs. Run `make bench CASE=arm`"):
        measuring.on_arm("gate right on ARM", other, pipeline.run(other, [data.noisy()], "f32"))
    with pytest.raises(ValueError, match="of another model or other inputs"):
        measuring.on_arm("gate right on ARM", convert.gate(True), replace(here, inputs=[data.noisy(0.1)]))
    with pytest.raises(ValueError, match="no emulator here, and no nothing-f32.npz is stored"):
        measuring.on_arm("nothing", other, here)


def test_a_program_that_ends_with_an_error_is_one_sentence(here, tmp_path):
    program = [sys.executable, "-c", "import sys; sys.exit('a\\n  broken  \\n')"]
    with pytest.raises(ValueError, match="^The emulated processor did not run the model: broken$"):
        measuring.emulated(program, "none", convert.gate(True), here, "f32")


def test_an_emulated_run_is_a_run_of_the_same_inputs(here):
    run = measuring.emulated(HERE, "none", convert.gate(True), here, "f32")
    assert run.processor == "ARM, emulated (none)" and run.precision == "f32"
    assert (run.inputs[0] == here.inputs[0]).all() and pipeline.difference(run, here) < 1e-6


def test_stored_runs_show_the_faults_and_their_workarounds():
    found = {name: pipeline.load(measuring.stored(name, "f32")).outputs[0] for pair in PAIRS for name in pair}
    for wrong, right in PAIRS:
        assert not np.abs(found[wrong] - found[right]).max() < 0.1, wrong  # or not a number
    expected = measuring.reference()
    assert np.abs(found["gate right on ARM"] - expected).max() < measuring.TOLERANCE


@pytest.mark.parametrize("right_on_arm", [False, True])
def test_the_emulator_computes_what_is_stored(right_on_arm):
    """Without the emulator, this processor takes its place for the form that is right everywhere."""
    model = convert.gate(right_on_arm or not PROGRAM)
    here = pipeline.run(model, [data.noisy()], "f32")
    run = measuring.emulated(PROGRAM or HERE, "x", model, here, "f32")
    name = "gate right on ARM" if right_on_arm or not PROGRAM else "gate as written"
    assert np.abs(run.outputs[0] - pipeline.load(measuring.stored(name, "f32")).outputs[0]).max() < 1e-4


def test_rows_fail_for_a_wrong_result(here):
    broken = replace(here, outputs=[here.outputs[0][:, ::-1]])
    parity = measuring.parity({"right": here, "reversed": broken})
    assert [row["pass"] for row in parity] == [True, False]
    rows = measuring.quality({"FP32": here}, {"FP32": here}, broken)
    assert compare.check(rows).startswith("5 checks")
    with pytest.raises(AssertionError, match="1 of 5 rows fail"):
        compare.check(measuring.quality({"FP32": here}, {"FP32": broken}, broken))
