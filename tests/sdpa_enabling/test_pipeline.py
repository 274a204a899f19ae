"""The passes on random shapes, masks and head counts; what they leave alone; attention without a mask."""

import os
import subprocess
import sys

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch
import transformers

from notebooks.sdpa_enabling import pipeline
from notebooks.sdpa_enabling.convert import to_ir, to_onnx
from notebooks.sdpa_enabling.network import Attention
from notebooks.sdpa_enabling.pipeline import FUSED, fuse_attention, guard, layer_types, make_stateful
from tests.sdpa_enabling.layers import difference, is_fused, layer
from tests.utils.models.small import fingerprint, language_model
from utils import bench
from utils.models.llm import FP32_PROPERTIES
from utils.models.portable import wrong_on_arm
from utils.paths import ROOT

WRITTEN = ["divided by sqrt(d)", "masked_fill", "torch.where", "mask first", "max(scores, lowest)", "einsum"]


@pytest.mark.parametrize("seed", range(20))
def test_random_layers_give_the_same_result(seed):
    random = np.random.default_rng(seed)
    kv_heads = int(random.integers(1, 4))
    options = {
        "heads": kv_heads * int(random.integers(1, 4)),
        "kv_heads": kv_heads,
        "size": int(random.choice([16, 32, 64])),
        "window": random.choice([None, 2, 5]),
        "rotary": bool(random.integers(2)),
        "padding": int(random.choice([0, 1, 3])),
    }
    network, model = layer(WRITTEN[seed % len(WRITTEN)], seed, **options)
    assert fuse_attention(model).changed == 1 and is_fused(model)
    lengths = tuple(int(n) for n in random.integers(1, 20, 3))
    assert difference(network, model, int(random.integers(1, 4)), lengths) < 1e-5


def scores_of(axis: int = -1, extra: bool = False, transposed: bool = False, kind=np.float32, mask=None) -> ov.Model:
    """Attention [1, 2, 5, 8] without state; extra: the weights are an output, too; mask: added to the scores."""
    q, k, v = (ops.parameter([1, 2, 5, 8], kind, name=name) for name in "qkv")
    scores = ops.matmul(q, k, False, True)
    weights = ops.softmax(scores if mask is None else ops.add(scores, mask), axis)
    results = [ops.matmul(weights, v, transposed, False), *([weights] if extra else [])]
    return ov.Model(results, [q, k, v])


def outputs(model: ov.Model) -> np.ndarray:
    inputs = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 8), np.float32)
    return ov.Core().compile_model(model, "CPU", FP32_PROPERTIES)(list(inputs))[0]


def test_subtracted_masks_and_factors_of_queries_and_keys_are_moved():
    q, k, v = (ops.parameter([1, 2, 5, 8], np.float32, name=name) for name in "qkv")
    mask = np.triu(np.full((5, 5), 3, np.float32), 1)
    scores = ops.matmul(ops.multiply(q, np.float32(0.5)), ops.multiply(k, np.float32(0.25)), False, True)
    scores = ops.multiply(ops.subtract(scores, mask), np.float32(2))
    model = ov.Model([ops.matmul(ops.softmax(scores, 3), v, False, False)], [q, k, v])
    expected = outputs(model)
    assert fuse_attention(model).changed == 1
    (node,) = [node for node in model.get_ops() if node.get_type_name() == FUSED]
    assert float(node.input_value(4).get_node().get_data()) == 0.25  # 0.5 * 0.25 * 2
    assert np.abs(outputs(model) - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (scores_of(axis=2), "not over the last axis"),
        (scores_of(extra=True), "read by 2 operations (MatMul, Result)"),
        (scores_of(transposed=True), "its weights are transposed"),
        (scores_of(kind=np.float64), "are f64"),
    ],
    ids=["axis", "weights are read", "weights are transposed", "double"],
)
def test_what_is_no_plain_attention_is_left_alone_with_the_reason(model, reason):
    before = fingerprint(model)
    report = fuse_attention(model)
    assert report.changed == 0 and reason in str(report)
    assert fingerprint(model) == before


@pytest.mark.parametrize("shape", [(5,), (5, 5), (2, 1, 5), (3, 1, 5, 5)])
def test_masks_of_every_shape_that_is_broadcast(shape):
    model = scores_of(mask=np.random.default_rng(0).standard_normal(shape, np.float32))
    expected = outputs(model)
    assert fuse_attention(model).changed == 1
    assert np.abs(outputs(model) - expected).max() < 1e-6


def test_what_is_added_to_all_keys_alike_is_no_mask():
    """With a cache, the CPU raises an error at a mask with one number for all keys."""
    model = scores_of(mask=np.float32(3))
    expected = outputs(model)
    assert fuse_attention(model).changed == 1
    (node,) = [node for node in model.get_ops() if node.get_type_name() == FUSED]
    assert node.get_input_size() == 3
    assert np.abs(outputs(model) - expected).max() < 1e-6


def test_masks_of_one_condition_and_other_numbers_stay_apart():
    inputs = [ops.parameter([1, 2, 5, 8], np.float32, name=name) for name in "qkv"]
    q, k, v = inputs
    condition = ops.constant(np.tril(np.ones((5, 5), bool)))
    results = []
    for order in (1, -1):
        scores = ops.matmul(q, k, False, True)
        chosen = ops.select(condition, *(scores, ops.constant(np.float32(-1e9)))[::order])
        results.append(ops.matmul(ops.softmax(chosen, -1), v, False, False))
    model = ov.Model([ops.add(*(ops.slice(r, [1], [4], [1], [2]) for r in results))], inputs)
    expected = outputs(model)
    assert fuse_attention(model).changed == 2
    assert np.abs(outputs(model) - expected).max() < 1e-6


ARCHITECTURES = {  # of transformers: configuration, inputs, and what the pass reports
    "Swin": ({"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2],
              "window_size": 4}, "pixels", "2 changed: MatMul, Divide, Softmax"),
    "XLNet": ({"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37}, "tokens",
              "2 changed: Einsum, Add, Multiply, Softmax, Einsum"),
    "DebertaV2": ({"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "intermediate_size": 37}, "tokens", "2 left alone"),
    "ResNet": ({"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, "pixels", "no attention was found"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_of_transformers(name):
    settings, kind, expected = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    network = getattr(transformers, f"{name}Model")(config).eval()
    x = torch.randn(2, 3, 32, 32) if kind == "pixels" else torch.randint(3, 90, (2, 7))

    class FirstOutput(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, x):
            return self.network(x, return_dict=False)[0]

    with torch.no_grad():
        reference = network(x, return_dict=False)[0].numpy()
        model = ov.convert_model(FirstOutput(), example_input=x)
    report = fuse_attention(model)
    assert str(report).startswith(expected)
    assert np.abs(ov.Core().compile_model(model, "CPU", FP32_PROPERTIES)(x.numpy())[0] - reference).max() < 1e-4


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_new_keys_may_be_inputs_in_any_precision(kind):
    """The cache becomes state, and what is added to it stays an input."""
    q, k, v = (ops.parameter([-1, 2, -1, 16], kind, name=name) for name in "qkv")
    past = [ops.parameter([-1, 2, -1, 16], kind, name=f"past_{name}") for name in "kv"]
    keys, values = (ops.concat([old, new], 2) for old, new in zip(past, (k, v), strict=True))
    attended = ops.scaled_dot_product_attention(q, keys, values)
    model = ov.Model([attended, keys, values], [q, k, v, *past], "core")
    assert make_stateful(model).changed == 2
    assert [node.get_friendly_name() for node in model.get_parameters()][:-1] == ["q", "k", "v"]
    assert model.inputs[-1].any_name == "beam_idx"
    compiled = ov.Core().compile_model(model, "CPU", FP32_PROPERTIES)
    assert layer_types(compiled)[pipeline.WITH_CACHE] == 1
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 16)).astype(kind)
    request = compiled.create_infer_request()
    for _ in range(2):
        assert np.isfinite(request.infer([x, x, x, np.zeros(1, np.int32)])[0]).all()


def test_inputs_that_are_joined_are_no_cache():
    a, b = (ops.parameter([-1, 3, 4], np.float32, name=name) for name in "ab")
    assert "no cache was found" in str(make_stateful(ov.Model([ops.concat([a, b], 1)], [a, b], "joined")))
    a, b = (ops.parameter([-1, -1, 4], np.float32, name=name) for name in "ab")
    second = ops.concat([b, a], 1)
    with pytest.raises(ValueError, match="Every input of the model is a cache"):
        make_stateful(ov.Model([ops.concat([a, b], 1), second], [a, b], "joined"))


def test_a_model_without_attention_stays_as_it_was():
    model = language_model()
    before = fingerprint(model)
    assert str(fuse_attention(model)) == "no attention was found: the model stays as it was"
    assert "no cache was found" in str(make_stateful(model))
    assert fingerprint(model) == before


@pytest.mark.parametrize("spelling", ["times a constant", "divided by sqrt(d)", "masked_fill", "einsum"])
def test_onnx_is_fused_too(tmp_path, spelling):
    network = Attention(spelling, kv_heads=2).eval()
    to_onnx(network, tmp_path / "layer.onnx")
    model = ov.Core().read_model(tmp_path / "layer.onnx")
    assert make_stateful(model).changed == 2 and fuse_attention(model).changed == 1
    assert is_fused(model)
    assert difference(network, model, batch=2) < 1e-5


@pytest.mark.parametrize("spelling", ["F.scaled_dot_product_attention", "boolean mask", "masked_fill"])
def test_each_row_has_a_mask_of_its_own(spelling):
    """So every processor is right at every precision; `wrong_on_arm` finds the layer whose rows share a mask."""
    _, model = layer("F.scaled_dot_product_attention")
    shared = [node.get_friendly_name() for node in model.get_ops() if node.get_type_name() == FUSED]
    assert wrong_on_arm(model) == shared and len(shared) == 1
    network, model = layer(spelling)
    fuse_attention(model)
    (node,) = (node for node in model.get_ops() if node.get_type_name() == FUSED)
    assert wrong_on_arm(model) == [] and node.get_input_partial_shape(3)[0].is_dynamic
    assert is_fused(model)
    assert difference(network, model, batch=3) < 1e-5


def rows_off(model: ov.Model, network: Attention) -> np.ndarray:
    """How far each of three rows is from PyTorch at most, in first calls with several tokens in BF16: [3]."""
    settings = {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "f32"}
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    off = []
    for tokens in (7, 40, 100, 13):
        x, empty = torch.randn(3, tokens, 256), torch.zeros(3, 4, 0, 64)
        request.reset_state()
        request.infer({"x": x.numpy(), "beam_idx": np.arange(3, dtype=np.int32)})
        with torch.no_grad():
            expected = network(x, empty, empty)[0].numpy()
        off.append(np.abs(request.get_tensor("y").data - expected).max((1, 2)))
    return np.max(off, 0)  # a NaN stays one


def test_the_pass_avoids_the_wrong_rows_of_a_shared_mask():
    """If the last line fails, the error is mended: remove `_separate_masks`, and the report in notebooks/arm."""
    if "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this processor has no arithmetic in BF16")
    network, model = layer("F.scaled_dot_product_attention")
    first, *others = rows_off(model, network)
    fuse_attention(model)
    assert first < 0.05 and rows_off(model, network).max() < 0.05
    assert not np.max(others) < 0.05  # or not a number: what is read lies behind the mask


def test_layers_share_the_masks_of_their_rows():
    """A copy for each layer would take as many times the memory."""
    inputs = [ops.parameter([-1, 2, -1, 8], np.float32, name=name) for name in ("x", "keys", "values")]
    mask, beams = ops.parameter([1, 1, -1, -1], np.float32, name="mask"), ops.parameter([-1], np.int32, "beam_idx")
    y, sinks = inputs[0], []
    for i in range(2):
        caches = []
        for one in inputs[1:]:
            empty = ops.broadcast(np.float32(0), np.array([1, 2, 0, 8]))
            name = f"{one.get_friendly_name()} {i}"
            past = ops.read_value(empty, name, ov.Type.f32, ov.PartialShape([-1, 2, -1, 8]))
            caches.append(ops.concat([ops.gather(past, beams, np.int64(0)), one], 2))
            sinks.append(ops.assign(caches[-1], name))
        y = ops.scaled_dot_product_attention(y, *caches, mask)
    model = ov.Model([ops.result(y)], sinks, [*inputs, mask, beams], "two layers")
    assert fuse_attention(model).changed == 2
    first, second = (node for node in model.get_ordered_ops() if node.get_type_name() == FUSED)
    assert first.get_input_partial_shape(3)[0].is_dynamic
    assert first.input_value(3).get_node().get_name() == second.input_value(3).get_node().get_name()


@pytest.mark.parametrize("state", [True, False])
def test_what_is_right_with_one_mask_keeps_it(state):
    """One row alone, and attention without a cache."""
    model = layer("masked_fill")[1] if state else to_ir(Attention("masked_fill"))
    if state:
        model.reshape({"x": [1, -1, 256], "beam_idx": [1]})
    fuse_attention(model)
    (node,) = (node for node in model.get_ops() if node.get_type_name() == FUSED)
    assert node.get_input_partial_shape(3)[0] == ov.Dimension(1) and wrong_on_arm(model) == []


def unmasked(by_hand: bool = False, causal: bool = False) -> ov.Model:
    inputs = [ops.parameter([-1, 2, -1, 16], np.float32, name=name) for name in "qkv"]
    q, k, v = inputs
    scores = ops.multiply(ops.matmul(q, k, False, True), np.float32(0.25))
    by_hand_node = ops.matmul(ops.softmax(scores, 3), v, False, False)
    return ov.Model([by_hand_node if by_hand else ops.scaled_dot_product_attention(*inputs, causal=causal)], inputs)


def error(first: int, keys: int = 33, **properties: str) -> float:
    """The difference from PyTorch for a number of keys after a first call with `first` keys."""
    request = ov.Core().compile_model(unmasked(), "CPU", FP32_PROPERTIES | properties).create_infer_request()
    for count in (first, keys):
        q, k, v = (torch.randn(1, 2, n, 16) for n in (1, count, count))
        ours = request.infer([x.numpy() for x in (q, k, v)])[0]
    return float(np.abs(ours - torch.nn.functional.scaled_dot_product_attention(q, k, v).numpy()).max())


def test_the_guard_avoids_the_wrong_results_after_a_call_with_one_key():
    assert guard(unmasked()) == guard(unmasked(by_hand=True)) == {"SNIPPETS_MODE": "DISABLE"}
    assert error(first=1, **guard(unmasked())) < 1e-5
    assert error(first=2) < 1e-5


def test_the_guard_leaves_other_models_alone():
    assert guard(language_model()) == guard(to_ir(Attention("masked_fill"))) == {}
    assert guard(layer("masked_fill")[1]) == guard(layer("no mask")[1]) == guard(unmasked(causal=True)) == {}


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_openvino_is_still_wrong_without_the_guard_from_the_floats_of_a_register_on(isa):
    """If this fails, the error is mended: remove `guard`, and its section in the notebook."""
    types = layer_types(ov.Core().compile_model(unmasked(), "CPU", FP32_PROPERTIES))
    if not types["Subgraph"]:
        pytest.skip("this processor runs attention without state in separate operations")
    floats = 16 if isa == "AVX512_CORE" and "AVX-512" in bench.machine()["cpu"] else 8
    program = f"from {__name__} import error; print(error(1, {floats - 1}), error(1, {floats}))"
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": isa}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    below, at = map(float, run.stdout.split())
    assert below < 1e-5 and at > 0.1


def test_the_pipeline_has_no_other_dependencies():
    assert {name for name in vars(pipeline) if name in ("torch", "transformers", "nncf")} == set()


def test_a_file_is_analysed_on_every_device(tmp_path, device):
    ov.save_model(to_ir(Attention("masked_fill")), tmp_path / "layer.xml")
    assert "executed after: 1 ScaledDotProductAttention" in pipeline.analyse(tmp_path / "layer.xml", device)[1]
