"""GPTQ checkpoints, written here number by number as the format says, and read by convert.py.

The format (AutoGPTQ): eight 4-bit numbers in an int32, the first in the lowest bits; qweight packs along the
inputs, qzeros along the outputs and holds the zero point minus one.
"""

import json

import numpy as np
import openvino as ov
import pytest

from notebooks.graph_customization.convert import dequantize_gptq, read_gptq
from notebooks.graph_customization.pipeline import InsertWeights, customize, read_int4_weights
from tests.utils.models.small import compress, export, stateful_logits, token_ids

GROUP, VOCABULARY = 32, 128
SETTINGS = {"bits": 4, "group_size": GROUP, "desc_act": False, "sym": False, "quant_method": "gptq"}


def words(numbers: np.ndarray) -> np.ndarray:
    """Eight numbers along the first axis to one int32."""
    packed = np.zeros((numbers.shape[0] // 8, numbers.shape[1]), np.int32)
    for row, column in np.ndindex(*packed.shape):
        word = 0
        for i in range(8):
            word += int(numbers[8 * row + i, column]) * 16**i
        packed[row, column] = word - 2**32 if word >= 2**31 else word
    return packed


def random_layer(random: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    groups = inputs // GROUP
    return {
        "values": random.integers(0, 16, (outputs, inputs)),
        "scales": random.uniform(0.02, 0.06, (outputs, groups)).astype(np.float16),
        "zeros": random.integers(1, 16, (outputs, groups)),
    }


def stored(layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of a layer in the file."""
    inputs = layer["values"].shape[1]
    return {
        "qweight": words(layer["values"].T),
        "qzeros": np.ascontiguousarray(words(layer["zeros"] - 1).T),
        "scales": np.ascontiguousarray(layer["scales"].T),
        "g_idx": (np.arange(inputs) // GROUP).astype(np.int32),
    }


def dequantized(layer: dict[str, np.ndarray]) -> np.ndarray:
    """float32 [O, I]: (value - zero point) * scale of the input's group."""
    zeros, scales = (np.repeat(layer[key].astype(np.float32), GROUP, axis=1) for key in ("zeros", "scales"))
    return (layer["values"].astype(np.float32) - zeros) * scales


def write(folder, tensors: dict, settings: dict = SETTINGS, where: str = "config.json", **config):
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    contents = {name: torch.as_tensor(value) for name, value in tensors.items()}
    save_file(contents, folder / "model.safetensors", metadata={"format": "pt"})
    if where == "config.json":
        config["quantization_config"] = settings
    else:
        (folder / where).write_text(json.dumps(settings), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def one_layer(seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    layer = random_layer(np.random.default_rng(seed), 16, 64)
    return layer, {f"model.layers.0.proj.{kind}": value for kind, value in stored(layer).items()}


def test_the_packer_of_these_tests_writes_the_format():
    numbers = np.array([[1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 0, 0, 0, 0, 15]]).T
    np.testing.assert_array_equal(words(numbers).view(np.uint32), [[0x87654321, 0xF0000000]])


@pytest.mark.parametrize("where", ["config.json", "quantize_config.json"])
def test_the_numbers_of_a_checkpoint_are_read(tmp_path, where):
    layer, tensors = one_layer()
    found = read_gptq(write(tmp_path / "gptq", tensors, where=where))
    assert list(found) == ["model.layers.0.proj"]
    (weight,) = found.values()
    assert (weight.values.dtype, weight.zero_points.dtype, weight.kind) == (np.uint8, np.uint8, ov.Type.u4)
    np.testing.assert_array_equal(weight.values, layer["values"])
    np.testing.assert_array_equal(weight.zero_points, layer["zeros"])
    np.testing.assert_array_equal(weight.scales, layer["scales"])
    np.testing.assert_array_equal(weight.dequantize(), dequantized(layer))


def test_a_checkpoint_without_group_indices_is_read(tmp_path):
    layer, tensors = one_layer(1)
    del tensors["model.layers.0.proj.g_idx"]
    (weight,) = read_gptq(write(tmp_path / "gptq", tensors)).values()
    np.testing.assert_array_equal(weight.dequantize(), dequantized(layer))


def test_dequantizing_writes_an_ordinary_checkpoint(tmp_path):
    from safetensors.numpy import load_file

    layer, tensors = one_layer(2)
    others = {
        "model.layers.0.proj.bias": np.arange(16, dtype=np.float16),
        "model.norm.weight": np.full(64, 1.5, np.float16),
        "model.layers.0.other.scales": np.ones(3, np.float16),  # ends like a part of a layer, and is none
    }
    folder = write(tmp_path / "gptq", tensors | others, model_type="qwen2")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    dequantize_gptq(folder, tmp_path / "plain")
    index = json.loads((tmp_path / "plain" / "model.safetensors.index.json").read_text(encoding="utf-8"))
    found = {}
    for file in set(index["weight_map"].values()):
        found |= load_file(tmp_path / "plain" / file)
    assert set(found) == {*others, "model.layers.0.proj.weight"} == set(index["weight_map"])
    assert {value.dtype for value in found.values()} == {np.dtype(np.float16)}
    for name, value in others.items():
        np.testing.assert_array_equal(found[name], value)
    np.testing.assert_array_equal(found["model.layers.0.proj.weight"], dequantized(layer).astype(np.float16))
    config = json.loads((tmp_path / "plain" / "config.json").read_text(encoding="utf-8"))
    assert config == {"model_type": "qwen2"}
    assert (tmp_path / "plain" / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SETTINGS | {"bits": 8}, "has 8-bit weights; an INT4 IR takes 4 bits"),
        (SETTINGS | {"quant_method": "awq"}, "awq"),
        (SETTINGS | {"checkpoint_format": "gptq_v2"}, "gptq_v2"),
        ({}, "is not a GPTQ checkpoint"),
    ],
    ids=["8 bits", "AWQ", "zero points as they are", "no settings"],
)
def test_other_formats_are_refused(tmp_path, settings, message):
    folder = write(tmp_path / "other", one_layer()[1], settings)
    with pytest.raises(ValueError, match=message):
        read_gptq(folder)
    with pytest.raises(ValueError, match=message):
        dequantize_gptq(folder, tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_activation_order_is_refused_by_the_layers_name(tmp_path):
    _, tensors = one_layer()
    order = np.random.default_rng(0).permutation(np.arange(64) // GROUP).astype(np.int32)
    tensors["model.layers.0.proj.g_idx"] = order
    folder = write(tmp_path / "gptq", tensors, SETTINGS | {"desc_act": True})
    with pytest.raises(ValueError, match=r"model.layers.0.proj in .* was quantised in activation order \(desc_act\)"):
        read_gptq(folder)


def test_a_zero_point_of_16_is_refused(tmp_path):
    _, tensors = one_layer()
    tensors["model.layers.0.proj.qzeros"] = np.full_like(tensors["model.layers.0.proj.qzeros"], -1)
    with pytest.raises(ValueError, match="model.layers.0.proj in .* has zero points of 16"):
        read_gptq(write(tmp_path / "gptq", tensors))


def test_a_checkpoint_without_quantised_layers_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no GPTQ layers"):
        read_gptq(write(tmp_path / "gptq", {"model.norm.weight": np.ones(4, np.float16)}))


def test_a_gptq_checkpoint_runs_as_openvino_ir_with_its_own_numbers(tmp_path):
    import nncf
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    reference = Qwen2ForCausalLM(config).half()
    random, tensors, expected = np.random.default_rng(0), {}, {}
    for name, module in reference.model.layers.named_modules(prefix="model.layers"):
        if isinstance(module, torch.nn.Linear):
            layer = random_layer(random, *module.weight.shape)
            tensors |= {f"{name}.{kind}": value for kind, value in stored(layer).items()}
            expected[name] = dequantized(layer)
    parts = reference.state_dict()
    tensors |= {key: value for key, value in parts.items() if key.removesuffix(".weight") not in expected}
    checkpoint = write(tmp_path / "gptq", tensors, **config.to_dict() | {"architectures": ["Qwen2ForCausalLM"]})

    dequantize_gptq(checkpoint, tmp_path / "plain")
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float16)
    xml = export(network, tmp_path / "export")
    model = compress(xml, "INT4_ASYM", group_size=GROUP, backup_mode=nncf.BackupMode.NONE)
    ids = token_ids(0, batch=2, tokens=9, vocabulary=VOCABULARY)
    requantized = stateful_logits(model, ids)
    layers = read_gptq(checkpoint)
    assert set(layers) == set(expected) == set(read_int4_weights(model)) and len(layers) == 7
    assert customize(model, [InsertWeights(layers)]).changed == 7

    reference.float()
    for name, matrix in expected.items():
        reference.get_submodule(name).weight.data = torch.from_numpy(matrix)
    with torch.inference_mode():
        logits = reference(torch.from_numpy(ids)).logits.numpy()
    error, requantization = (np.abs(x - logits).max() for x in (stateful_logits(model, ids), requantized))
    assert error < 1e-4 * np.abs(logits).max() and requantization > 0.02 * np.abs(logits).max()
