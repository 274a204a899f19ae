"""The vocoder's transposed convolutions run along two axes, on which all processors agree, and compute what PyTorch's
compute along one."""

import numpy as np
import openvino as ov
import pytest
import torch

from notebooks.dynamic_shapes.convert import MASKED, graphs, network_of, to_ir
from notebooks.dynamic_shapes.network import SMALL, vocoder
from utils.models.portable import TRANSPOSED, wrong_on_arm

FP32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.mark.parametrize("name", [*MASKED, *SMALL])
def test_no_operation_is_computed_wrongly_on_arm(name):
    assert wrong_on_arm(graphs()[name]()) == []


def test_every_upsampling_runs_along_two_axes():
    strides = [x.get_attributes()["strides"] for x in to_ir("vocoder").get_ops() if x.get_type_name() == TRANSPOSED]
    assert sorted(map(list, strides)) == sorted([1, *layer.stride] for layer in vocoder().upward)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize(("batch", "n"), [(1, 1), (1, 37), (3, 8)])
def test_the_vocoder_makes_the_samples_of_pytorch(kind, batch, n):
    model, (network, width) = to_ir("vocoder"), network_of("vocoder")
    if kind == "static":
        model.reshape({"x": [batch, n, width], "mask": [batch, n]})
    x = np.random.default_rng(n).standard_normal((batch, n, width), np.float32)
    mask = (np.arange(n) < (n + 1) // 2).astype(np.float32)[None].repeat(batch, 0)  # the second half is padding
    with torch.inference_mode():
        expected = network(torch.from_numpy(x), torch.from_numpy(mask)).numpy()
    found = ov.Core().compile_model(model, "CPU", FP32)({"x": x, "mask": mask})[0]
    assert found.shape == expected.shape == (batch, 64 * n)
    assert np.abs(found - expected).max() < 1e-5 < 1e-2 < np.abs(expected).max()
