"""The attention layer as a stateful model, what it executes, and how far it is from PyTorch."""

import openvino as ov
import torch

from notebooks.sdpa_enabling.convert import to_ir
from notebooks.sdpa_enabling.network import Attention
from notebooks.sdpa_enabling.pipeline import WITH_CACHE, layer_types, make_stateful
from utils.models.llm import FP32_PROPERTIES


def layer(spelling: str, seed: int = 0, **options) -> tuple[Attention, ov.Model]:
    """A layer with random weights, and its stateful model."""
    torch.manual_seed(seed)
    network = Attention(spelling, **options).eval()
    model = to_ir(network)
    assert make_stateful(model).changed == 2
    return network, model


def is_fused(model: ov.Model) -> bool:
    """Whether one operation holds the attention and its cache, and no part of either is executed apart from it."""
    types = layer_types(ov.Core().compile_model(model, "CPU", FP32_PROPERTIES))
    assert types["MemoryInput"] == 2
    return types[WITH_CACHE] == 1 and not types["Softmax"]


def difference(network: Attention, model: ov.Model, batch: int = 1, lengths: tuple[int, ...] = (3, 1, 5)) -> float:
    """The largest difference from PyTorch; both get the tokens in several calls."""
    request = ov.Core().compile_model(model, "CPU", FP32_PROPERTIES).create_infer_request()
    cache = (torch.zeros(batch, network.kv_heads, 0, network.size),) * 2
    worst = 0.0
    for new in lengths:
        x = torch.randn(batch, new, network.heads * network.size)
        with torch.no_grad():
            expected, *cache = network(x, *cache)
        request.infer({"x": x.numpy(), "beam_idx": torch.arange(batch, dtype=torch.int32).numpy()})
        ours = torch.from_numpy(request.get_tensor("y").data.copy())
        worst = max(worst, float((ours - expected).abs().max()))
    return worst
