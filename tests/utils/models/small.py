"""Small language models for tests: graphs built node by node, and an exported random Llama.

`language_model` builds the nodes that optimum-intel and NNCF write where a graph pass matches: decompression of
weights, tied and untied output layers, and operations after the output layer. Its numbers are multiples of powers of
two, so that sums are exact in any order and results are equal bit by bit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from utils.models.llm import FP32_PROPERTIES, model_inputs

# With 4-bit weights the activations stay f32, too.
PRECISE = FP32_PROPERTIES | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
END = np.iinfo(np.int64).max  # of an axis, for a slice
HIDDEN, INNER, GROUP = 32, 64, 16  # sizes of hidden state and MLP; weights in a group
STORAGES = ("f32", "f16", "int8", "u4", "u4 per channel", "i4", "i4 per channel")
TAILS = ("", "bias", "softcap", "convert", "bias softcap convert")
SLICES = ("slice", "strided slice", "gather", "gather unsqueeze")
RANGES = {"int8": (0, 255), "u4": (0, 15), "i4": (-8, 7)}
TYPES = {"int8": ov.Type.u8, "u4": ov.Type.u4, "i4": ov.Type.i4}


def quantize(matrix: np.ndarray, storage: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Quantize a matrix [O, I] to values [O, G, I/G], scales f16 [O, G, 1] and zero points [O, G, 1] or None."""
    kind = storage.split()[0]
    low, high = RANGES[kind]
    grouped = matrix.reshape(len(matrix), -1, GROUP if storage in ("u4", "i4") else matrix.shape[1])
    bottom, top = (np.minimum(grouped.min(-1, keepdims=True), 0), np.maximum(grouped.max(-1, keepdims=True), 0))
    if kind == "i4":
        scales, zero_points = power_of_two(np.abs(grouped).max(-1, keepdims=True) / 8), None
    else:
        scales = power_of_two((top - bottom) / (high - low))
        zero_points = np.round(-bottom / scales).clip(low, high)
    shift = 0 if zero_points is None else zero_points
    return np.round(grouped / scales + shift).clip(low, high), scales.astype(np.float16), zero_points


def power_of_two(values: np.ndarray) -> np.ndarray:
    """The next power of two, upwards."""
    return np.exp2(np.ceil(np.log2(values)))


def weight(matrix: np.ndarray, storage: str, name: str) -> ov.Node:
    """A float32 weight [O, I] that is stored as `storage`, with the decompression that NNCF writes."""
    if storage in ("f32", "f16"):
        constant = ops.constant(matrix.astype(storage.replace("f", "float")))
        constant.set_friendly_name(f"self.{name}.weight")
        return constant if storage == "f32" else ops.convert(constant, "f32")
    kind = TYPES[storage.split()[0]]
    values, scales, zero_points = quantize(matrix, storage)
    if values.shape[1] == 1:  # per channel: two axes and no Reshape
        values, scales = values[:, 0], scales[:, 0]
        zero_points = None if zero_points is None else zero_points[:, 0]
    numbers = ops.constant(values, kind)  # OpenVINO packs 4-bit values here itself
    numbers.set_friendly_name(f"self.{name}._openvino_orig_weight")
    chain = ops.convert(numbers, "f16")
    if zero_points is not None:
        constant = ops.constant(zero_points, kind)
        constant.set_friendly_name(f"{numbers.get_friendly_name()}/zero_point")
        chain = ops.subtract(chain, ops.convert(constant, "f16"))
    scale = ops.constant(scales)
    scale.set_friendly_name(f"{numbers.get_friendly_name()}/scale")
    chain = ops.multiply(chain, scale)
    if values.ndim == 3:
        chain = ops.reshape(chain, np.array(matrix.shape, np.int64), special_zero=False)
    return ops.convert(chain, "f32")


def linear(value: ov.Node, matrix: np.ndarray, storage: str, name: str) -> ov.Node:
    """value [batch, tokens, I] times the transpose of a stored weight [O, I]."""
    return ops.matmul(value, weight(matrix, storage, name), transpose_a=False, transpose_b=True)


def norm(value: ov.Node, gain: np.ndarray) -> ov.Node:
    """RMSNorm over the last axis."""
    mean = ops.reduce_mean(ops.multiply(value, value), np.array([-1], np.int64), keep_dims=True)
    return ops.multiply(ops.divide(value, ops.sqrt(ops.add(mean, np.float32(1e-5)))), gain)


def last_of(value: ov.Node, how: str) -> ov.Node:
    """The last token of [batch, tokens, H] as [batch, 1, H], by one of the operations in SLICES."""
    one = np.array([1], np.int64)
    if how == "slice":
        return ops.slice(value, -one, one * END, one, one)
    if how == "strided slice":
        zero = np.array([0, 0], np.int64)
        return ops.strided_slice(value, np.array([0, -1], np.int64), zero, zero + 1, [1, 0], [1, 1])
    if how == "gather":
        return ops.gather(value, -one, np.int64(1))
    return ops.unsqueeze(ops.gather(value, np.int64(-1), np.int64(1)), one)


def language_model(
    seed: int = 0,
    *,
    vocabulary: int = 24,
    layers: int = 1,
    storage: str = "f32",
    tied: bool = False,
    tail: str = "",
    residual: bool = True,
    cut: str | None = None,
    head: bool = True,
    rescale: np.ndarray | None = None,
) -> ov.Model:
    """input_ids int64 [batch, tokens] -> logits [batch, tokens, vocabulary]; without `head`, the hidden state.

    Every token is summed with those before it, so that the last one depends on all. tail: one of TAILS, operations
    after the output layer. cut: one of SLICES, how the model itself takes the last token. rescale [INNER]: factors that
    move from each layer's up_proj into its down_proj before quantization, as AWQ does.
    """
    random = np.random.default_rng(seed)

    def matrix(outputs: int, inputs: int) -> np.ndarray:
        numbers = random.standard_normal((outputs, inputs), np.float32) / np.float32(np.sqrt(inputs))
        return np.round(numbers * 64) / 64

    ids = ops.parameter([-1, -1], np.int64, name="input_ids")
    ids.output(0).set_names({"input_ids"})
    embedding = matrix(vocabulary, HIDDEN) * 4
    table = weight(embedding, storage, "model.embed_tokens")
    state = ops.cum_sum(ops.gather(table, ids, np.int64(0)), np.int64(1))
    for i in range(layers):
        path = f"model.layers.{i}.mlp"
        read, down = norm(state, matrix(1, HIDDEN)), matrix(HIDDEN, INNER)
        gate, up = (matrix(INNER, HIDDEN) for _ in "gu")
        if rescale is not None:
            up, down = up / rescale[:, None], down * rescale
        opened = ops.tanh(linear(read, gate, storage, f"{path}.gate_proj"))
        inner = ops.multiply(opened, linear(read, up, storage, f"{path}.up_proj"))
        update = linear(inner, down, storage, f"{path}.down_proj")
        state = ops.add(state, update) if residual else update
    if head:
        state = norm(state, matrix(1, HIDDEN) * 4)
        state = ops.multiply(ops.round(ops.multiply(state, np.float32(8))), np.float32(1 / 8))
        if cut:
            state = last_of(state, cut)
        table = table if tied else weight(matrix(vocabulary, HIDDEN), storage, "lm_head")
        state = ops.matmul(state, table, transpose_a=False, transpose_b=True)
        if "bias" in tail:
            state = ops.add(state, matrix(1, vocabulary)[None])
        if "softcap" in tail:
            state = ops.multiply(ops.tanh(ops.divide(state, np.float32(3))), np.float32(3))
        if "convert" in tail:
            state = ops.convert(state, "f16")
    result = ops.result(state)
    result.output(0).set_names({"logits" if head else "embedding"})
    return ov.Model([result], [ids], "toy")


def stateful_model(seed: int = 0, vocabulary: int = 24) -> ov.Model:
    """A model with the inputs of an exported language model, which returns logits and keeps earlier tokens as state."""
    random = np.random.default_rng(seed)
    shapes = {"input_ids": [-1, -1], "attention_mask": [-1, -1], "position_ids": [-1, -1], "beam_idx": [-1]}
    inputs = {name: ops.parameter(shape, np.int64, name=name) for name, shape in shapes.items()}
    for name, node in inputs.items():
        node.output(0).set_names({name})
    ids, zero = inputs["input_ids"], np.int64(0)
    embedding, head = random.standard_normal((2, vocabulary, HIDDEN), np.float32)
    embedded = ops.gather(ops.constant(embedding), ids, zero)
    places = ops.unsqueeze(ops.convert(inputs["position_ids"], "f32"), np.array([2], np.int64))
    batch = ops.gather(ops.shape_of(ids), np.array([0], np.int64), zero)
    shape = ops.concat([batch, ops.constant(np.array([1, HIDDEN], np.int64))], 0)
    start = ops.broadcast(ops.constant(np.float32(0)), shape)
    past = ops.read_value(start, "past", np.float32, ov.PartialShape([-1, 1, HIDDEN]))
    total = ops.add(past, ops.cum_sum(ops.add(embedded, ops.sin(places)), np.int64(1)))
    keep = ops.assign(last_of(total, "slice"), "past")
    logits = ops.matmul(norm(total, np.ones((1, HIDDEN), np.float32)), ops.constant(head), False, True)
    return ov.Model([ops.result(logits)], [keep], list(inputs.values()), "stateful")


def run(model: ov.Model | Path, ids: np.ndarray, output: int | str = 0) -> np.ndarray:
    """One output of a hand-made model for token ids [batch, tokens], in full precision."""
    return ov.Core().compile_model(model, "CPU", PRECISE)([ids])[output]


def token_ids(seed: int, batch: int = 1, tokens: int = 5, vocabulary: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, (batch, tokens))


def fingerprint(model: ov.Model) -> list[tuple]:
    """A full description of a graph: operations in order, with types, shapes, inputs, names and constants' bytes."""
    nodes = []
    for node in model.get_ordered_ops():
        data = node.get_data().tobytes() if node.get_type_name() == "Constant" else b""
        sources = [(v.get_node().get_friendly_name(), v.get_index()) for v in node.input_values()]
        outputs = [
            (str(v.get_element_type()), str(v.get_partial_shape()), sorted(v.get_names())) for v in node.outputs()
        ]
        nodes.append((node.get_type_name(), node.get_friendly_name(), sources, outputs, data))
    return nodes


# --- Exported by optimum-intel, compressed by NNCF --------------------------------------------------------------


def export(network, folder: Path) -> Path:
    """Export a transformers model as a stateful FP16 IR, as `llm.to_ir` does; returns the XML file."""
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    network.half().save_pretrained(folder / "transformers")
    main_export(
        str(folder / "transformers"),
        folder / "ir",
        task="text-generation-with-past",
        ov_config=OVConfig(dtype="fp16"),
        convert_tokenizer=False,
        local_files_only=True,
    )
    return folder / "ir" / "openvino_model.xml"


def tiny_llama():
    """A random Llama: 2 layers, 64 wide, 256 tokens, tied embeddings."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    network = LlamaForCausalLM(config)
    for name, parameter in network.named_parameters():
        if "norm" in name:  # ones would be folded away
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return network


def compress(xml: Path, mode: str, *, data: bool = False, **options) -> ov.Model:
    """A compressed copy of an exported model; data: calibrate on random tokens."""
    import nncf

    if data:
        samples = [model_inputs(token_ids(seed, tokens=32, vocabulary=256)) for seed in range(8)]
        options["dataset"] = nncf.Dataset(samples)
    return nncf.compress_weights(ov.Core().read_model(xml), mode=nncf.CompressWeightsMode[mode], **options)


def stateful_logits(model: ov.Model | Path, ids: np.ndarray) -> np.ndarray:
    """Logits of an exported model for a prompt [batch, tokens], in full precision."""
    return ov.Core().compile_model(model, "CPU", PRECISE)(model_inputs(ids))[0]
