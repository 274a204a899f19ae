"""A traced network keeps its numbers, names and 16-bit weights; a language model keeps its KV cache for each row."""

import numpy as np
import openvino as ov
import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2Model

from utils.models import llm, tracing

WIDTH = 32


@pytest.fixture(scope="module")
def model() -> Qwen2Model:
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 10}
    return Qwen2Model(Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


@pytest.fixture(scope="module")
def stateful(model) -> ov.Model:
    head = nn.Linear(WIDTH, 7)
    torch.nn.init.normal_(head.weight)
    model.head_for_the_test = head
    return tracing.stateful_language_model(model, head, "scores")


def read(request: ov.InferRequest, embeddings: np.ndarray, past: int, rows: list[int]) -> np.ndarray:
    batch, length = embeddings.shape[:2]
    inputs = {
        "inputs_embeds": embeddings,
        "attention_mask": np.ones((batch, past + length), np.int64),
        "position_ids": np.arange(past, past + length)[None].repeat(batch, 0),
        "beam_idx": np.array(rows, np.int32),
    }
    return request.infer(inputs)["scores"].copy()


def test_a_conversion_does_not_warn_of_what_is_traced(recwarn):
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    tracing.trace(Branching(), {"x": torch.ones(1, 3)}, [[1, -1]], ["y"])
    assert not [x for x in recwarn if issubclass(x.category, torch.jit.TracerWarning)]


def test_only_constants_that_are_exact_in_fp16_are_saved_as_fp16(tmp_path):
    class Windowed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64, bias=False).half().float()
            self.window = torch.hann_window(64)

        def forward(self, x):
            return self.linear(x) * self.window

    torch.manual_seed(0)
    network, x = Windowed(), torch.randn(2, 64)
    tracing.save(tracing.trace(network, {"x": x}, [[-1, 64]], ["y"]), tmp_path / "model.xml")
    saved = ov.Core().read_model(tmp_path / "model.xml")
    kinds = {node.data.size: node.get_element_type().get_type_name() for node in saved.get_ops() if _large(node)}
    assert kinds == {64 * 64: "f16", 64: "f32"}
    found = ov.Core().compile_model(saved, "CPU", llm.FP32_PROPERTIES)(x.numpy())["y"]
    assert np.abs(found - network(x).numpy()).max() < 1e-6


def _large(node: ov.Node) -> bool:
    return node.get_type_name() == "Constant" and np.prod(node.get_output_shape(0)) >= 64


def test_a_language_model_read_in_pieces_says_what_pytorch_says_at_once(model, stateful):
    embeddings = np.random.default_rng(0).standard_normal((2, 9, WIDTH)).astype(np.float32)
    with torch.inference_mode():
        hidden = model(inputs_embeds=torch.from_numpy(embeddings)).last_hidden_state
        expected = model.head_for_the_test(hidden).numpy()
    request = ov.Core().compile_model(stateful, "CPU", llm.FP32_PROPERTIES).create_infer_request()
    for _ in range(2):  # the second time after a reset
        pieces = [read(request, embeddings[:, a:b], a, [0, 1]) for a, b in ((0, 5), (5, 6), (6, 9))]
        assert np.abs(np.concatenate(pieces, 1) - expected).max() < 1e-5
        request.reset_state()


def test_rows_go_on_from_the_rows_of_the_cache_that_are_asked_for(stateful):
    embeddings = np.random.default_rng(1).standard_normal((2, 6, WIDTH)).astype(np.float32)
    request = ov.Core().compile_model(stateful, "CPU", llm.FP32_PROPERTIES).create_infer_request()
    read(request, embeddings[:, :5], 0, [0, 1])
    straight = read(request, embeddings[:, 5:], 5, [0, 1])
    request.reset_state()
    read(request, embeddings[:, :5], 0, [0, 1])
    crossed = read(request, embeddings[::-1, 5:].copy(), 5, [1, 0])
    assert np.abs(crossed[::-1] - straight).max() < 1e-5 < np.abs(crossed - straight).max()


def test_attention_has_an_additive_mask(stateful):
    attention = [x for x in stateful.get_ops() if x.get_type_name() == "ScaledDotProductAttention"]
    assert [x.input_value(3).get_element_type() for x in attention] == [ov.Type.f32] * 2  # with booleans it is slow


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_stay_as_they_are(dtype):
    torch.manual_seed(0)
    network = nn.Linear(64, 64, bias=False).to(dtype)
    traced = tracing.trace(network, {"x": torch.zeros(2, 64)}, [[-1, 64]], ["y"])
    assert [port.any_name for port in (*traced.inputs, *traced.outputs)] == ["x", "y"]
    stored = {x.get_element_type() for x in traced.get_ops() if x.get_type_name() == "Constant" and x.data.size == 4096}
    assert stored == {ov.Type.bf16 if dtype == torch.bfloat16 else ov.Type.f32}
    x = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    found = ov.Core().compile_model(traced, "CPU", llm.FP32_PROPERTIES)(x)["y"]
    assert np.abs(found - x @ network.weight.detach().float().numpy().T).max() < 1e-4
