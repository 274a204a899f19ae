"""Runs are repeated from files, differences are seen, and what is wrong with a file or an input is an error."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from notebooks.arm import pipeline
from notebooks.arm.pipeline import Layer, Run


def product(matrix: np.ndarray) -> ov.Model:
    """y = tanh(x @ matrix) for x [n, 4]."""
    x = ops.parameter([-1, 4], np.float32)
    return ov.Model([ops.tanh(ops.matmul(x, matrix, False, False))], [x], "product")


MATRIX = np.random.default_rng(0).standard_normal((4, 4), np.float32)
X = np.random.default_rng(1).standard_normal((3, 4), np.float32)


@pytest.fixture
def trusted() -> Run:
    return pipeline.run(product(MATRIX), [X], "f32")


def test_a_run_holds_what_was_computed_and_how(trusted):
    assert np.abs(trusted.outputs[0] - np.tanh(X @ MATRIX)).max() < 1e-5
    assert trusted.precision == "f32"
    kinds = [layer.kind for layer in trusted.layers]
    assert "FullyConnected" in kinds or "MatMul" in kinds
    assert not {"Input", "Output", "Const"} & set(kinds)
    assert sum(pipeline.kernels(trusted.layers).values()) == len(kinds)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda y: y, 0),
        (lambda y: y + 0.5 * np.abs(y).max(), 0.5),
        (lambda y: y[:2], np.inf),
        (lambda y: y * np.nan, np.inf),
    ],
    ids=["none", "half of the largest", "shape", "no numbers"],
)
def test_differences_are_relative_to_the_largest_number(trusted, change, expected):
    ours = replace(trusted, outputs=[change(trusted.outputs[0])])
    assert pipeline.difference(ours, trusted) == pytest.approx(expected, rel=1e-5)
    assert pipeline.agrees(ours, trusted) == (expected == 0)


def test_the_limit_follows_the_precision(trusted):
    ours = replace(trusted, outputs=[trusted.outputs[0] + 0.01 * np.abs(trusted.outputs[0]).max()])
    assert [pipeline.agrees(replace(ours, precision=name), trusted) for name in ("f32", "f16")] == [False, True]


def test_a_fingerprint_sees_operations_and_not_weights():
    prints = {pipeline.fingerprint(product(matrix)) for matrix in (MATRIX, MATRIX + 1)}
    assert len(prints) == 1
    x = ops.parameter([-1, 4], np.float32)
    other = ov.Model([ops.sigmoid(ops.matmul(x, MATRIX, False, False))], [x], "product")
    assert pipeline.fingerprint(other) not in prints


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        ("gemm_acl", "Arm Compute Library"),
        ("acl", "Arm Compute Library"),
        ("brgconv_avx512", "oneDNN, blocked products"),
        ("jit_asimd", "code generated at compilation"),
        ("ref_any", "plain C++ loops"),
        ("unknown", "no kernel of its own"),
    ],
)
def test_kernels_have_families(kernel, family):
    assert Layer("MatMul", kernel, "f32", "a").family == family


def test_a_file_gives_the_run_back(trusted, tmp_path):
    pipeline.save(trusted, tmp_path / "run.npz")
    found = pipeline.load(tmp_path / "run.npz")
    assert (found.outputs[0] == trusted.outputs[0]).all() and (found.inputs[0] == X).all()
    assert replace(found, inputs=[], outputs=[]) == replace(trusted, inputs=[], outputs=[])


def test_many_inputs_keep_their_order(trusted, tmp_path):
    many = [np.full(2, i) for i in range(12)]
    pipeline.save(replace(trusted, inputs=many), tmp_path / "run.npz")
    assert [int(array[0]) for array in pipeline.load(tmp_path / "run.npz").inputs] == list(range(12))


def test_bad_files_and_inputs_are_errors(tmp_path):
    (tmp_path / "text.npz").write_text("no run", encoding="utf-8")
    np.savez(tmp_path / "other.npz", a=X)
    for name in ("text.npz", "other.npz", "none.npz"):
        with pytest.raises(ValueError, match=f"{name} holds no run"):
            pipeline.load(tmp_path / name)
    with pytest.raises(ValueError, match="does not run on this processor. OpenVINO says"):
        pipeline.run(product(MATRIX), [X[:, :3]])


@pytest.mark.parametrize(("factor", "status", "text"), [(1, 0, "agrees"), (1.1, 1, "DIFFERS")])
def test_the_program_repeats_a_run(trusted, tmp_path, factor, status, text):
    ov.save_model(product(MATRIX), tmp_path / "model.xml", compress_to_fp16=False)
    pipeline.save(replace(trusted, outputs=[factor * trusted.outputs[0]]), tmp_path / "trusted.npz")
    command = [sys.executable, "-P", pipeline.__file__, "model.xml", "trusted.npz", "--precision", "f32"]
    done = subprocess.run(
        [*command, "--save", "ours.npz"], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == status and done.stdout.rstrip().endswith(text), done.stderr
    assert np.abs(pipeline.load(tmp_path / "ours.npz").outputs[0] - trusted.outputs[0]).max() < 1e-6


def test_the_program_says_what_is_wrong(trusted, tmp_path):
    command = [sys.executable, "-P", pipeline.__file__, "model.xml", "trusted.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 2 and "trusted.npz holds no run" in done.stderr
    x = ops.parameter([-1, X.shape[1]], np.float32)
    ov.save_model(ov.Model([ops.relu(x)], [x], "other"), tmp_path / "model.xml")
    pipeline.save(trusted, tmp_path / "trusted.npz")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 2 and "trusted.npz is a run of another model" in done.stderr
