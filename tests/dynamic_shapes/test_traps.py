"""What stays dynamic, and what Snippets compiles, as seen in the executed graph of OpenVINO 2026.4.1."""

import numpy as np
import openvino as ov
import pytest
import torch

from notebooks.dynamic_shapes.convert import network_of, to_ir
from notebooks.dynamic_shapes.network import SMALL
from notebooks.dynamic_shapes.pipeline import dynamic_operations, layer_types

FP32 = {"INFERENCE_PRECISION_HINT": "f32"}
NEVER, STATIC, ALWAYS = (0, 0, 0), (1, 0, 0), (1, 1, 1)
SUBGRAPHS = {  # static, bounded, dynamic
    "element-wise chain": STATIC,
    "softmax by hand": NEVER,
    "layer normalisation by hand": NEVER,
    "RMS normalisation and gate": STATIC,
    "attention without SDPA": ALWAYS,
    "convolution and SiLU": STATIC,
}


def executed(model: ov.Model, mode: str):
    return layer_types(ov.Core().compile_model(model, "CPU", FP32 | {"SNIPPETS_MODE": mode}))


def shaped(name: str, kind: str) -> ov.Model:
    model, width = to_ir(name), SMALL[name][1]
    if kind != "dynamic":
        n = 128 if kind == "static" else ov.Dimension(1, 512)
        model.reshape(ov.PartialShape([ov.Dimension(1), ov.Dimension(n) if n == 128 else n, ov.Dimension(width)]))
    return model


def test_every_small_network_is_expected():
    assert SUBGRAPHS.keys() == SMALL.keys()


@pytest.mark.parametrize("name", SMALL)
def test_snippets_compiles_what_the_table_says(name):
    models = [shaped(name, kind) for kind in ("static", "bounded", "dynamic")]
    assert tuple(executed(model, "ENABLE")["Subgraph"] for model in models) == SUBGRAPHS[name]
    assert not any(executed(model, "DISABLE")["Subgraph"] for model in models)


def test_a_softmax_and_a_normalisation_are_recognised_without_snippets():
    assert executed(shaped("softmax by hand", "dynamic"), "DISABLE")["Softmax"] == 1
    assert executed(shaped("layer normalisation by hand", "dynamic"), "DISABLE")["MVN"] == 1


def test_a_range_stays_dynamic_and_reaches_the_result():
    model = shaped("element-wise chain", "bounded")
    assert str(model.output(0).partial_shape) == "[1,1..512,256]"
    assert dynamic_operations(model)
    assert not dynamic_operations(shaped("element-wise chain", "static"))


def test_a_length_above_the_range_is_an_error():
    request = ov.Core().compile_model(shaped("element-wise chain", "bounded"), "CPU").create_infer_request()
    request.infer([np.zeros((1, 512, 256), np.float32)])
    with pytest.raises(RuntimeError):
        request.infer([np.zeros((1, 513, 256), np.float32)])


@pytest.mark.parametrize("name", ["encoder", "vocoder"])
def test_zeros_are_no_mask(name):
    network, width = network_of(name)
    x = torch.randn(1, 5, width, generator=torch.manual_seed(0))
    padded = torch.cat([x, torch.zeros(1, 3, width)], 1)
    mask = torch.tensor([[1.0] * 5 + [0.0] * 3])
    with torch.no_grad():
        alone = network(x, torch.ones(1, 5))
        masked, forgotten = (network(padded, m)[:, : alone.shape[1]] for m in (mask, torch.ones(1, 8)))
    assert (masked - alone).abs().max() < 1e-5 < 1e-3 < (forgotten - alone).abs().max()


def test_reshaping_one_input_leaves_the_other_dynamic():
    model = to_ir("encoder")
    model.reshape({"x": [1, 128, 256]})
    assert model.input("mask").partial_shape.is_dynamic and dynamic_operations(model)
