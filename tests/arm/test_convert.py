"""Both forms of the noise gate are PyTorch's; the search finds the faults of the one and none in the other."""

import numpy as np
import pytest

from notebooks.arm import convert, data, measuring, pipeline
from utils.models.portable import wrong_on_arm


@pytest.mark.parametrize("right_on_arm", [False, True])
@pytest.mark.parametrize("noise", [0, data.NOISE])
def test_it_computes_what_pytorch_does(right_on_arm, noise):
    run = pipeline.run(convert.gate(right_on_arm), [data.noisy(noise)], "f32")
    expected = measuring.reference(noise)
    assert run.outputs[0].shape == expected.shape and np.abs(run.outputs[0] - expected).max() < 1e-4


def test_only_one_form_has_faults():
    assert len(wrong_on_arm(convert.gate())) == 2 and not wrong_on_arm(convert.gate(right_on_arm=True))


def test_the_faults_of_a_file_are_named(tmp_path):
    assert convert.examined(convert.gate()).count("wrong on ARM: ") == 2
    assert convert.examined(convert.gate(True)) == "no operation in a form that is known to be wrong"
    (tmp_path / "bad.onnx").write_text("no model", encoding="utf-8")
    with pytest.raises(ValueError, match="bad.onnx is no model that OpenVINO reads"):
        convert.read(tmp_path / "bad.onnx")


def test_an_unknown_model_is_an_error():
    with pytest.raises(ValueError, match="no model 'huge'. Models: tiny, released"):
        convert.prepare("huge")
