"""Decoders that `build` writes: the logits of each kind, what the CPU plugin fuses, weights, checkpoints, errors."""

import json
from collections import Counter

import numpy as np
import openvino as ov
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from notebooks.llm_from_opset.pipeline import Checkpoint, build, quantize, weight
from tests.llm_from_opset import small
from utils.models.llm import FP32_PROPERTIES, Session

FUSED = {"ScaledDotProductAttention": 2, "RoPE": 4}  # in two layers


def prompt(seed: int = 0, batch: int = 2, tokens: int = 20) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 300, (batch, tokens))


def executed(model: ov.Model) -> Counter:
    compiled = ov.Core().compile_model(model, "CPU", FP32_PROPERTIES)
    kinds = [node.get_rt_info()["layerType"] for node in compiled.get_runtime_model().get_ops()]
    return Counter(kind.astype(str) if hasattr(kind, "astype") else str(kind) for kind in kinds)


@pytest.mark.parametrize("kind", small.CLASSES)
def test_logits_are_those_of_transformers(kind):
    network, ids = small.network(kind), prompt()
    expected = network(torch.from_numpy(ids)).logits.numpy()
    session = Session(build(network.config.to_dict(), small.tensors(network)), **FP32_PROPERTIES)
    np.testing.assert_allclose(session.prefill(ids), expected, atol=2e-3)
    session.prefill(ids[:, :11])  # then token by token, from the state
    for i in range(11, 20):
        np.testing.assert_allclose(session.extend(ids[:, i : i + 1])[:, 0], expected[:, i], atol=2e-3)


@pytest.mark.parametrize("kind", small.CLASSES)
def test_attention_positions_and_norms_are_fused(kind):
    network = small.network(kind)
    kinds = executed(build(network.config.to_dict(), small.tensors(network)))
    norms = 9 if kind == "qwen3" else 5
    others = {"RMS": norms, "Softmax": 0, "Math": 2}  # Math: cos and sin; the MLP's sigmoid is a part of its product
    assert {name: kinds[name] for name in (*FUSED, *others)} == FUSED | others


def test_chatglm_is_what_its_architecture_says():
    weights, ids = small.chatglm_tensors(), prompt(batch=1)
    model = build(small.CHATGLM, weights)
    session = Session(model, **FP32_PROPERTIES)
    np.testing.assert_allclose(session.prefill(ids)[0], small.chatglm_logits(weights, ids[0]), atol=2e-3)
    assert FUSED.items() <= executed(model).items()


def test_padding_on_the_left_changes_nothing():
    network, ids = small.network("llama"), prompt(batch=1)
    request = (
        ov.Core()
        .compile_model(build(network.config.to_dict(), small.tensors(network)), "CPU", FP32_PROPERTIES)
        .create_infer_request()
    )

    def last(padding: int) -> np.ndarray:
        request.reset_state()
        inputs = {
            "input_ids": np.pad(ids, ((0, 0), (padding, 0)), constant_values=7),
            "attention_mask": np.pad(np.ones_like(ids), ((0, 0), (padding, 0))),
            "position_ids": np.pad(np.arange(20)[None], ((0, 0), (padding, 0))),
            "beam_idx": np.zeros(1, np.int32),
        }
        return request.infer(inputs)[0][0, -1].copy()

    np.testing.assert_allclose(last(5), last(0), atol=1e-4)


def test_beam_idx_chooses_the_text_that_goes_on():
    network, ids = small.network("qwen2"), prompt()
    session = Session(build(network.config.to_dict(), small.tensors(network)), **FP32_PROPERTIES)
    session.prefill(ids)
    expected = session.extend(ids[::-1, :1]).copy()  # each text with the first token of the other
    session.prefill(ids)
    inputs = {
        "input_ids": ids[:, :1],
        "attention_mask": np.ones((2, 21), np.int64),
        "position_ids": np.full((2, 1), 20),
        "beam_idx": np.array([1, 0], np.int32),
    }
    np.testing.assert_allclose(session.request.infer(inputs)[0], expected[::-1], atol=1e-4)


def test_silu_has_the_spelling_of_which_the_plugin_makes_one_operation():
    """With `ops.swish`, whose second input is a constant, the MLP of FP16 weights does not become an LLMMLP."""
    network = small.network("llama")
    kinds = Counter(node.get_type_name() for node in build(network.config.to_dict(), small.tensors(network)).get_ops())
    assert (kinds["Sigmoid"], kinds["Swish"]) == (2, 0)


# --- Weights -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "group"), [(8, 64), (4, 64), (4, 16)])
def test_rounding_is_to_the_nearest_step(bits, group):
    matrix = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    numbers, zero_points, scales = quantize(matrix, bits, group)
    decoded = ((numbers.astype(np.float32) - zero_points) * scales.astype(np.float32)).reshape(5, 64)
    steps = scales.astype(np.float32).repeat(group, -1).reshape(5, 64)
    assert numbers.max() < 2**bits and np.all(np.abs(decoded - matrix) <= 1.01 * steps)
    assert np.abs(decoded - matrix).mean() < 0.3 * steps.mean()


@pytest.mark.parametrize("precision", ["FP16", "INT8", "INT4"])
def test_the_graph_decodes_what_was_rounded(precision):
    matrix = np.random.default_rng(1).standard_normal((6, 128)).astype(np.float32)
    decoded = ov.Core().compile_model(ov.Model([weight(matrix, precision)], []), "CPU", FP32_PROPERTIES)([])[0]
    if precision == "FP16":
        expected = matrix.astype(np.float16)
    else:
        numbers, zero_points, scales = quantize(matrix, *((8, 128) if precision == "INT8" else (4, 64)))
        expected = ((numbers.astype(np.float32) - zero_points) * scales.astype(np.float32)).reshape(6, 128)
    np.testing.assert_allclose(decoded, expected, atol=2e-3)


@pytest.mark.parametrize("rows", [3, 4])
def test_an_odd_number_of_groups_is_packed(rows):
    matrix = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float16)
    decoded = ov.Core().compile_model(ov.Model([weight(matrix, "INT4", 64)], []), "CPU", FP32_PROPERTIES)([])[0]
    steps = np.ptp(matrix.astype(np.float32), axis=1, keepdims=True) / 15
    assert (np.abs(decoded - matrix) <= 0.75 * steps).all()


@pytest.mark.parametrize(("precision", "kind"), [("INT8", "u8"), ("INT4", "u4")])
def test_each_weight_has_the_precision_that_was_asked_for(precision, kind):
    network = small.network("qwen2")

    def choose(name: str) -> str:
        return precision if "mlp" in name else "FP16"

    model = build(network.config.to_dict(), small.tensors(network), choose)
    stored = Counter(
        node.get_element_type().get_type_name()
        for node in model.get_ops()
        if node.get_type_name() == "Constant" and np.prod(node.get_output_shape(0)) >= 128 * 64
    )
    assert stored == {kind: 6, "f16": 10}


# --- Checkpoints and bad input -----------------------------------------------------------------------------------


def test_a_checkpoint_in_bf16_and_two_files_is_read(tmp_path):
    network = small.network("llama untied").bfloat16()
    state = network.state_dict()
    names = sorted(state)
    for number, part in enumerate((names[::2], names[1::2])):
        save_torch({name: state[name] for name in part}, tmp_path / f"model-{number}.safetensors")
    (tmp_path / "config.json").write_text(network.config.to_json_string(), encoding="utf-8")
    checkpoint = Checkpoint(tmp_path)
    assert set(checkpoint) == set(names) and len(checkpoint) == len(names)
    for name in names:
        np.testing.assert_array_equal(checkpoint[name], state[name].half().numpy())
    ids = prompt()
    logits = Session(build(checkpoint.config, checkpoint), **FP32_PROPERTIES).prefill(ids)
    np.testing.assert_allclose(logits, network.float()(torch.from_numpy(ids)).logits.numpy(), atol=2e-3)


def changed(**changes) -> tuple[dict, dict]:
    """Configuration and tensors of a Llama, with some tensors replaced, or removed where the change is None."""
    network = small.network("llama")
    state = small.tensors(network)
    for name, value in changes.items():
        name = name.replace("__", ".")
        state.pop(name, None) if value is None else state.update({name: value})
    return network.config.to_dict(), state


Q = "model__layers__1__self_attn__q_proj__weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({Q: None}, r"has no model\.layers\.1\.self_attn\.q_proj\.weight, which a llama needs"),
        ({Q: np.zeros((3, 128))}, r"q_proj\.weight has shape \[3, 128\], config\.json says \[128, 128\]"),
        ({"model__extra__weight": np.zeros(3)}, r"model\.extra\.weight has no place in a llama"),
    ],
)
def test_a_wrong_tensor_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        build(*changed(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'. Take one of: llama, qwen2"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "type 'yarn' are not built"),
        ({"hidden_act": "gelu"}, "no SiLU"),
    ],
)
def test_an_architecture_that_is_not_built_is_an_error(change, message):
    config, state = changed()
    with pytest.raises(ValueError, match=message):
        build(config | change, state)


def test_a_missing_key_is_named():
    config, state = changed()
    del config["intermediate_size"]
    with pytest.raises(ValueError, match="config.json of this llama has no 'intermediate_size'"):
        build(config, state)


def test_a_group_size_that_does_not_divide_names_the_tensor():
    with pytest.raises(ValueError, match=r"q_proj\.weight: Groups of 48 do not divide rows of 128 weights"):
        build(*changed(), "INT4", group_size=48)


def test_an_unknown_precision_is_an_error():
    with pytest.raises(ValueError, match="There is no precision 'INT2'. Choose one of: FP16, INT8, INT4"):
        build(*changed(), "INT2")


def test_what_is_no_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="needs config.json and"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match="model.safetensors is damaged"):
        Checkpoint(tmp_path)
    save_file({"a": np.zeros(3, np.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="a in .* has type I64. Take a checkpoint in BF16"):
        Checkpoint(tmp_path)["a"]
