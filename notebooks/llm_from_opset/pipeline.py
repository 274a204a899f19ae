"""A language model from weight arrays: `build` writes the graph of a decoder with OpenVINO operations.

    Checkpoint(folder) -- build(config, tensors, precision) --> ov.Model -- ov.save_model --> an IR for openvino_genai

`convert` does all of it. The kinds are Llama, Qwen2, Qwen3, GLM and ChatGLM (2 and 3). Weights are read one at a time,
and `Scratch` keeps the rounded ones in a file, so that the process needs memory for one of them. Needs openvino and
numpy only.

Shapes: B texts, T new tokens, S tokens so far with the new ones, H numbers of a hidden state, Q heads, K heads of keys
and values, D numbers of a head.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino._offline_transformations import compress_model_transformation

END = np.iinfo(np.int64).max  # of an axis, for a slice
BLOCK_ROWS = 256  # rows of a matrix that are converted or rounded at once
PRECISIONS = ("FP16", "INT8", "INT4")
NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # of the format safetensors
MASKED = np.float32(-65504)  # added to a score that must not count; the least number of FP16

Node = ov.Node | ov.Output
Precision = str | Callable[[str], str]  # one of PRECISIONS, for all weights or for a weight's name


# --- The checkpoint ----------------------------------------------------------------------------------------------


class Checkpoint(Mapping):
    """The tensors of a folder's safetensors files by name, each read when it is asked for, and `config`.

    Raises ValueError for a folder without config.json or safetensors, and for a file that is no safetensors.
    """

    def __init__(self, folder: str | Path) -> None:
        files = sorted(Path(folder).glob("*.safetensors"))
        if not files or not (Path(folder) / "config.json").is_file():
            raise ValueError(
                f"{folder} needs config.json and *.safetensors. Give a checkpoint in Hugging Face's layout."
            )
        self.config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        self._places: dict[str, tuple[Path, int, dict]] = {}
        for file in files:
            with file.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                try:
                    header = json.loads(opened.read(length) if length < file.stat().st_size else b"")
                except ValueError as error:
                    raise ValueError(f"{file} is damaged: it has no header. Download it again.") from error
            header.pop("__metadata__", None)
            self._places |= {name: (file, 8 + length, entry) for name, entry in header.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        """A tensor as it lies in the file, without a copy; BF16 becomes FP16. KeyError where there is none."""
        file, begin, entry = self._places[name]
        if entry["dtype"] not in NUMPY_TYPES:
            raise ValueError(f"{name} in {file} has type {entry['dtype']}. Take a checkpoint in BF16, FP16 or FP32.")
        begin, shape = begin + entry["data_offsets"][0], tuple(entry["shape"])
        mapped = np.memmap(file, NUMPY_TYPES[entry["dtype"]], "c", begin, shape)
        return _from_bf16(mapped, name) if entry["dtype"] == "BF16" else mapped

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _from_bf16(bits: np.ndarray, name: str) -> np.ndarray:
    """BF16 numbers, which are the upper halves of FP32 numbers, as FP16 [the same shape]."""
    values = np.empty(bits.shape, np.float16)
    for i in range(0, len(bits), BLOCK_ROWS):
        block = (bits[i : i + BLOCK_ROWS].astype(np.uint32) << 16).view(np.float32)
        if np.abs(block).max(initial=0) > np.finfo(np.float16).max:
            raise ValueError(f"{name} has numbers beyond 65504, which FP16 cannot hold. Choose INT8 from FP32 tensors.")
        values[i : i + BLOCK_ROWS] = block
    return values


# --- What a decoder is made of -----------------------------------------------------------------------------------

_HUGGING_FACE = {
    "embedding": "model.embed_tokens",
    "layer": "model.layers.{}.",
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "final_norm": "model.norm",
    "head": "lm_head",
}
NAMES = {  # by `model_type` of config.json: where each weight stands in the checkpoint
    "llama": _HUGGING_FACE,
    "qwen2": _HUGGING_FACE,
    "qwen3": _HUGGING_FACE | {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"},
    "glm": _HUGGING_FACE | {"gate_up": "mlp.gate_up_proj"},
    "chatglm": {
        "embedding": "transformer.embedding.word_embeddings",
        "layer": "transformer.encoder.layers.{}.",
        "attention_norm": "input_layernorm",
        "qkv": "self_attention.query_key_value",
        "out": "self_attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "gate_up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
        "final_norm": "transformer.encoder.final_layernorm",
        "head": "transformer.output_layer",
    },
}


class Architecture:
    """The sizes and choices that tell one decoder from another, of the content of config.json.

    Raises ValueError for what `build` cannot build, and for a missing key.
    """

    def __init__(self, config: Mapping) -> None:
        self.kind = config.get("model_type")  # one of NAMES
        if self.kind not in NAMES:
            raise ValueError(f"config.json has model_type {self.kind!r}. Take one of: {', '.join(NAMES)}.")
        if config.get("use_sliding_window") or config.get("hidden_act", "silu") != "silu":
            raise ValueError(
                f"This {self.kind} has a sliding window or no SiLU, which `build` does not write. Export it."
            )
        try:
            self._read(_hugging_face_keys(config) if self.kind == "chatglm" else config)
        except KeyError as error:
            raise ValueError(f"config.json of this {self.kind} has no {error}. Take it from the checkpoint.") from error

    def _read(self, config: Mapping) -> None:
        self.vocabulary, self.hidden = config["vocab_size"], config["hidden_size"]
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_size = config.get("head_dim") or self.hidden // self.heads
        self.mlp, self.epsilon = config["intermediate_size"], config["rms_norm_eps"]
        self.interleaved = self.kind.endswith("glm")  # rotary positions turn neighbours, not the two halves
        rope = config.get("rope_parameters") or (config.get("rope_scaling") or {}) | {
            "rope_theta": config.get("rope_theta", 10_000.0),
            "partial_rotary_factor": config.get("partial_rotary_factor", 0.5 if self.interleaved else 1),
        }
        self.frequencies = frequencies(int(self.head_size * rope.get("partial_rotary_factor", 1)), rope)
        bias = config.get("attention_bias", False)
        self.qkv_bias = bias or self.kind == "qwen2"
        self.out_bias = config.get("out_bias", bias and self.kind in ("llama", "qwen3"))
        self.tied = config.get("tie_word_embeddings", False)  # the output layer is the embedding


def _hugging_face_keys(config: Mapping) -> dict:
    """ChatGLM's configuration under the keys of the other kinds."""
    groups = "multi_query_group_num" if config["multi_query_attention"] else "num_attention_heads"
    keys = {
        "vocab_size": "padded_vocab_size",
        "num_hidden_layers": "num_layers",
        "num_key_value_heads": groups,
        "head_dim": "kv_channels",
        "intermediate_size": "ffn_hidden_size",
        "rms_norm_eps": "layernorm_epsilon",
        "attention_bias": "add_qkv_bias",
    }
    own = {"rope_theta": 10_000.0 * config.get("rope_ratio", 1), "out_bias": config.get("add_bias_linear", False)}
    return {**config, **own, **{key: config[name] for key, name in keys.items()}}


def frequencies(turned: int, rope: Mapping) -> np.ndarray:
    """How far each pair of a head turns from one position to the next: float32 [turned / 2], in radians.

    rope: `rope_theta`, and `rope_type` with its parameters ("default", "linear" or "llama3"). Raises ValueError for
    another type.
    """
    values = rope["rope_theta"] ** -(np.arange(0, turned, 2) / turned)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "linear":
        values = values / rope["factor"]
    elif kind == "llama3":  # slow turns are stretched, fast ones stay, those between are blended
        turns = rope["original_max_position_embeddings"] * values / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = np.clip((turns - low) / (high - low), 0, 1)
        values = values * (kept + (1 - kept) / rope["factor"])
    elif kind != "default":
        raise ValueError(f"Rotary positions of the type {kind!r} are not built. There are: default, linear, llama3.")
    return values.astype(np.float32)


# --- Weights -----------------------------------------------------------------------------------------------------


class Scratch:
    """Arrays in a file in place of memory: the system can write their pages to disk and take them back.

    They must be alive until the model that shares them is saved.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.size, self.arrays = file, 0, []
        file.touch()

    def empty(self, shape: tuple[int, ...], kind: type) -> np.ndarray:
        array = np.memmap(self.file, kind, "r+", self.size, shape)  # numpy lengthens the file
        self.size += -(-array.nbytes // 64) * 64  # the next array begins at a multiple of 64 bytes
        self.arrays.append(array)
        return array


def weight(
    matrix: np.ndarray, precision: str = "FP16", group_size: int = 64, scratch: Scratch | None = None
) -> ov.Node:
    """A matrix [O, I] as f32 node that the plugin keeps at its precision: constants and their decompression."""
    if precision not in PRECISIONS:
        raise ValueError(f"There is no precision {precision!r}. Choose one of: {', '.join(PRECISIONS)}.")
    if precision == "FP16":
        if matrix.dtype != np.float16 or (scratch and not isinstance(matrix, np.memmap)):
            matrix, values = _empty(scratch, matrix.shape, np.float16), matrix
            matrix[:] = values
        return _decompressed(ops.constant(matrix, shared_memory=True))
    if precision == "INT8":  # one group a row, which needs no third axis
        arrays = [array[:, 0] for array in quantize(matrix, 8, matrix.shape[1], scratch)]
        numbers, zero_points, scales = (ops.constant(array, shared_memory=True) for array in arrays)
    else:
        *arrays, scales = quantize(matrix, 4, group_size, scratch)
        numbers, zero_points = (_packed(array, scratch) for array in arrays)
    shifted = ops.subtract(ops.convert(numbers, "f16"), ops.convert(zero_points, "f16"))
    decoded = ops.multiply(shifted, scales)  # (numbers - zero point) * scale
    if precision == "INT4":
        decoded = ops.reshape(decoded, np.array(matrix.shape, np.int64), special_zero=False)
    return ops.convert(decoded, "f32")


def quantize(
    matrix: np.ndarray, bits: int, group_size: int, scratch: Scratch | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round each group of a row [O, I] to the nearest of 2^bits steps.

    Returns numbers uint8 [O, G, group_size], zero points uint8 [O, G, 1] and scales float16 [O, G, 1]; the weights are
    about (numbers - zero points) * scales. Raises ValueError for a group size that does not divide I.
    """
    rows, columns = matrix.shape
    if group_size < 1 or columns % group_size:
        raise ValueError(f"Groups of {group_size} do not divide rows of {columns} weights. Choose a divisor.")
    groups, steps = columns // group_size, 2**bits - 1
    numbers = _empty(scratch, (rows, groups, group_size), np.uint8)
    zero_points = np.empty((rows, groups, 1), np.uint8)
    scales = np.empty((rows, groups, 1), np.float16)
    for i in range(0, rows, BLOCK_ROWS):
        part = slice(i, i + BLOCK_ROWS)
        block = matrix[part].astype(np.float32).reshape(-1, groups, group_size)
        low = np.minimum(block.min(-1, keepdims=True), 0)
        high = np.maximum(block.max(-1, keepdims=True), 0)
        scale = np.maximum((high - low) / steps, 2.0**-24).astype(np.float16)  # a group of zeros has a scale, too
        zero_points[part] = np.round(-low / scale).clip(0, steps)
        numbers[part] = np.round(block / scale + zero_points[part]).clip(0, steps)
        scales[part] = scale
    return numbers, zero_points, scales


def _decompressed(constant: ov.Node) -> ov.Node:
    """An FP16 constant as FP32, marked as decompression: without the mark the plugin would store it as FP32.

    Python cannot set the mark. OpenVINO sets it where it compresses a model itself, and that node is used here.
    """
    lent = ops.constant(np.full((64, 64), 0.1, np.float32))
    x = ops.parameter([1, 64], np.float32)
    product = ops.matmul(x, lent, transpose_a=False, transpose_b=False)
    compress_model_transformation(ov.Model([product], [x]))
    convert = product.input_value(1).get_node()
    convert.input(0).replace_source_output(constant.output(0))
    convert.validate_and_infer_types()
    return convert


def _empty(scratch: Scratch | None, shape: tuple[int, ...], kind: type) -> np.ndarray:
    return scratch.empty(shape, kind) if scratch else np.empty(shape, kind)


def _packed(numbers: np.ndarray, scratch: Scratch | None) -> ov.Node:
    """A constant of 4-bit numbers, two in a byte, the first in the lower half."""
    flat = numbers.reshape(-1)
    packed = _empty(scratch, ((flat.size + 1) // 2,), np.uint8)  # an odd last number has a byte for itself
    packed[:] = flat[0::2]
    packed[: flat.size // 2] |= flat[1::2] << 4
    tensor = ov.Tensor(packed, ov.Shape(numbers.shape), ov.Type.u4)  # does not keep `packed` alive, unlike `scratch`
    return ops.constant(tensor, shared_memory=scratch is not None)


# --- The blocks --------------------------------------------------------------------------------------------------


def rms_norm(x: Node, gain: np.ndarray, epsilon: float) -> ov.Node:
    """x / sqrt(mean(x^2) + epsilon) * gain, over the last axis."""
    square = ops.power(x, np.float32(2))
    mean = ops.reduce_mean(square, np.array([-1], np.int64), keep_dims=True)
    inverse = ops.divide(np.float32(1), ops.sqrt(ops.add(mean, np.float32(epsilon))))
    return ops.multiply(ops.multiply(x, inverse), gain.astype(np.float32))


def rotary(x: Node, cos: Node, sin: Node, turned: int) -> ov.Node:
    """Turn pairs of the first `turned` numbers of each head in x [B, Q, T, D] by the angles of their positions.

    The pairs are (0, turned/2), (1, turned/2 + 1), and so on. cos, sin: [B, 1, T, turned].
    """
    size = x.get_output_partial_shape(0)[3].get_length()
    head, rest = (x, None) if turned == size else _cut(x, turned, size - turned)
    first, second = (ops.slice(head, [i], [j], [1], [3]) for i, j in ((0, turned // 2), (turned // 2, END)))
    crossed = ops.concat([ops.multiply(second, np.float32(-1)), first], -1)
    out = ops.add(ops.multiply(head, cos), ops.multiply(crossed, sin))
    return out if rest is None else ops.concat([out, rest], -1)


def neighbours_apart(heads: int, size: int, turned: int) -> np.ndarray:
    """An order of the rows of a query or key matrix, with which `rotary` turns what were neighbours: (0, 1), (2, 3) ...

    Scores are sums over the numbers of a head, so they stay the same when queries and keys have the same new order.
    """
    order = np.concatenate([np.arange(0, turned, 2), np.arange(1, turned, 2), np.arange(turned, size)])
    return (size * np.arange(heads)[:, None] + order).ravel()


def _cut(x: Node, *lengths: int) -> list[ov.Output]:
    """x cut along its last axis."""
    axis = len(x.get_output_partial_shape(0)) - 1
    return ops.variadic_split(x, np.int64(axis), np.array(lengths, np.int64)).outputs()


def _exchanged(x: Node) -> ov.Node:
    """x with its second and third axis exchanged."""
    return ops.transpose(x, np.array([0, 2, 1, 3]))


class Decoder:
    """The graph of one decoder while it is written; `model` is the result."""

    def __init__(
        self, config: Mapping, tensors: Mapping, precision: Precision, group_size: int, scratch: Scratch | None
    ) -> None:
        self.a, self.tensors, self.group_size, self.scratch = Architecture(config), tensors, group_size, scratch
        self.precision = precision if callable(precision) else usual_precision(self.a, precision)
        self.names, self.used, self.assigns = NAMES[self.a.kind], set(), []
        self.inputs = {
            name: ops.parameter([-1] * axes, kind, name=name)
            for name, axes, kind in (
                ("input_ids", 2, ov.Type.i64),  # [B, T]
                ("attention_mask", 2, ov.Type.i64),  # [B, S]
                ("position_ids", 2, ov.Type.i64),  # [B, T]
                ("beam_idx", 1, ov.Type.i32),  # [B]
            )
        }
        for name, node in self.inputs.items():
            node.output(0).set_names({name})

    # weights

    def take(self, name: str, *shape: int) -> np.ndarray:
        """The tensor of this name, which must have this shape."""
        if name not in self.tensors:
            raise ValueError(f"The checkpoint has no {name}, which a {self.a.kind} needs. Is its model_type right?")
        values = self.tensors[name]
        if tuple(values.shape) != shape:
            raise ValueError(
                f"{name} has shape {list(values.shape)}, config.json says {list(shape)}. Take both from one checkpoint."
            )
        self.used.add(name)
        return values

    def matrix(self, name: str, rows: int, columns: int, order: np.ndarray | None = None) -> ov.Node:
        values = self.take(f"{name}.weight", rows, columns)
        values = values if order is None else np.asarray(values)[order]
        try:
            node = weight(values, self.precision(name), self.group_size, self.scratch)
        except ValueError as error:
            raise ValueError(f"{name}.weight: {error}") from error
        node.set_friendly_name(f"{name}.weight")
        return node

    def norm(self, x: Node, name: str, size: int) -> ov.Node:
        return rms_norm(x, self.take(f"{name}.weight", size), self.a.epsilon)

    def linear(self, x: Node, name: str, rows: int, columns: int, bias: bool = False, order=None) -> ov.Node:
        """x [B, T, columns] times the transpose of a matrix [rows, columns]. order: of its rows."""
        y = ops.matmul(x, self.matrix(name, rows, columns, order), transpose_a=False, transpose_b=True)
        y.set_friendly_name(name)
        if bias:
            values = self.take(f"{name}.bias", rows).astype(np.float32)
            y = ops.add(y, values if order is None else values[order])
        return y

    # the diagram

    def model(self) -> ov.Model:
        a, names = self.a, self.names
        table = self.matrix(names["embedding"], a.vocabulary, a.hidden)
        x = ops.gather(table, self.inputs["input_ids"], np.int64(0))  # [B, T, H]
        self.cos, self.sin = self.angles()
        self.mask = self.causal_mask()
        for i in range(a.layers):
            layer = names["layer"].format(i)
            x = ops.add(x, self.attention(self.norm(x, layer + names["attention_norm"], a.hidden), layer, i))
            x = ops.add(x, self.mlp(self.norm(x, layer + names["mlp_norm"], a.hidden), layer))
        x = self.norm(x, names["final_norm"], a.hidden)
        if not a.tied:
            table = self.matrix(names["head"], a.vocabulary, a.hidden)
        logits = ops.result(ops.matmul(x, table, transpose_a=False, transpose_b=True))  # [B, T, vocabulary]
        logits.output(0).set_names({"logits"})
        self.nothing_left()
        return ov.Model([logits], self.assigns, list(self.inputs.values()), a.kind)

    def angles(self) -> tuple[ov.Node, ov.Node]:
        """cos and sin of position * frequency, [B, 1, T, turned numbers of a head]."""
        places = ops.convert(ops.unsqueeze(self.inputs["position_ids"], np.int64(2)), "f32")  # [B, T, 1]
        angles = ops.multiply(places, self.a.frequencies[None, None])  # [B, T, turned / 2]
        both = ops.concat([angles, angles], -1)  # for the first and the second number of each pair
        return ops.unsqueeze(ops.cos(both), np.int64(1)), ops.unsqueeze(ops.sin(both), np.int64(1))

    def causal_mask(self) -> ov.Node:
        """[B, 1, T, S]: 0 where a new token may look at a token, MASKED where that is later or padding."""
        new, total = (self.size(name) for name in ("input_ids", "attention_mask"))
        keys = ops.range(np.int64(0), total, np.int64(1), "i64")  # [S]
        queries = ops.unsqueeze(ops.range(ops.subtract(total, new), total, np.int64(1), "i64"), np.int64(1))  # [T, 1]
        real = ops.unsqueeze(ops.convert(self.inputs["attention_mask"], "boolean"), np.array([1, 2]))  # [B, 1, 1, S]
        allowed = ops.logical_and(ops.less_equal(keys, queries), real)
        return ops.select(allowed, np.float32(0), MASKED)

    def size(self, name: str) -> ov.Node:
        return ops.gather(ops.shape_of(self.inputs[name]), np.int64(1), np.int64(0))

    def attention(self, x: Node, layer: str, i: int) -> ov.Node:
        a, names = self.a, self.names
        q_size, kv_size = a.heads * a.head_size, a.kv_heads * a.head_size
        orders = [None, None, None]
        if a.interleaved:
            orders[:2] = (neighbours_apart(n, a.head_size, 2 * len(a.frequencies)) for n in (a.heads, a.kv_heads))
        if "qkv" in names:
            rows = q_size + 2 * kv_size
            order = np.concatenate([orders[0], q_size + orders[1], np.arange(q_size + kv_size, rows)])
            q, k, v = _cut(
                self.linear(x, layer + names["qkv"], rows, a.hidden, a.qkv_bias, order), q_size, kv_size, kv_size
            )
        else:
            parts = zip("qkv", (q_size, kv_size, kv_size), orders, strict=True)
            q, k, v = (self.linear(x, layer + names[p], n, a.hidden, a.qkv_bias, order) for p, n, order in parts)
        q, k, v = self.heads(q, a.heads), self.heads(k, a.kv_heads), self.heads(v, a.kv_heads)  # [B, T, heads, D]
        if "q_norm" in names:
            q, k = (self.norm(y, layer + names[p], a.head_size) for y, p in ((q, "q_norm"), (k, "k_norm")))
        q, k = (rotary(_exchanged(y), self.cos, self.sin, 2 * len(a.frequencies)) for y in (q, k))  # [B, heads, T, D]
        v = _exchanged(v)
        k, v = self.cached(k, f"{i}.key"), self.cached(v, f"{i}.value")  # [B, K, S, D]
        k, v = self.shared(k), self.shared(v)  # [B, Q, S, D]
        y = ops.scaled_dot_product_attention(q, k, v, self.mask, np.float32(a.head_size**-0.5))
        y = ops.reshape(_exchanged(y), np.array([0, 0, q_size]), special_zero=True)
        return self.linear(y, layer + names["out"], a.hidden, q_size, a.out_bias)

    def heads(self, x: Node, count: int) -> ov.Node:
        return ops.reshape(x, np.array([0, 0, count, self.a.head_size]), special_zero=True)

    def cached(self, new: Node, name: str) -> ov.Node:
        """The keys or values of earlier tokens, which the model keeps, and then the new ones [B, K, T, D]."""
        a = self.a
        batch = ops.gather(ops.shape_of(self.inputs["input_ids"]), np.array([0]), np.int64(0))
        shape = ops.concat([batch, np.array([a.kv_heads, 0, a.head_size])], 0)
        empty = ops.broadcast(np.float32(0), shape)  # what a new conversation begins with
        name = f"past_key_values.{name}present.{name}"
        past = ops.read_value(empty, name, ov.Type.f32, ov.PartialShape([-1, a.kv_heads, -1, a.head_size]))
        past = ops.gather(past, self.inputs["beam_idx"], np.int64(0))  # the rows that are continued
        so_far = ops.concat([past, new], 2)
        self.assigns.append(ops.assign(so_far, name))
        return so_far

    def shared(self, x: Node) -> ov.Node:
        """Each head of keys or values [B, K, S, D] repeated for the heads of queries that share it."""
        a = self.a
        if a.kv_heads == a.heads:
            return x
        group = ops.unsqueeze(x, np.int64(2))  # [B, K, 1, S, D]
        group = ops.broadcast(group, np.array([1, 1, a.heads // a.kv_heads, 1, 1]), broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(group, np.array([0, a.heads, -1, a.head_size]), special_zero=True)

    def mlp(self, x: Node, layer: str) -> ov.Node:
        """SwiGLU: down(gate(x) * sigmoid(gate(x)) * up(x)). OpenVINO recognises it so, and not with `ops.swish`."""
        a, names = self.a, self.names
        if "gate_up" in names:
            gate, up = _cut(self.linear(x, layer + names["gate_up"], 2 * a.mlp, a.hidden), a.mlp, a.mlp)
        else:
            gate, up = (self.linear(x, layer + names[p], a.mlp, a.hidden) for p in ("gate", "up"))
        return self.linear(
            ops.multiply(ops.multiply(gate, ops.sigmoid(gate)), up), layer + names["down"], a.hidden, a.mlp
        )

    def nothing_left(self) -> None:
        """Raise ValueError for a tensor that no block has taken: the checkpoint is of another kind."""
        left = [name for name in self.tensors if name not in self.used and not name.endswith("inv_freq")]
        if self.a.tied:
            left = [name for name in left if name != f"{self.names['head']}.weight"]
        if left:
            raise ValueError(
                f"{left[0]} has no place in a {self.a.kind} ({len(left)} tensors). Is its model_type right?"
            )


def usual_precision(architecture: Architecture, precision: str) -> Callable[[str], str]:
    """The precision of each weight by its name: embedding and output layer stay at 8 bits where the others have 4."""
    names = NAMES[architecture.kind]
    ends = {names["embedding"], names["head"]}
    return lambda name: "INT8" if precision == "INT4" and name in ends else precision


def build(
    config: Mapping,
    tensors: Mapping[str, np.ndarray],
    precision: Precision = "FP16",
    group_size: int = 64,
    scratch: Scratch | None = None,
) -> ov.Model:
    """The model of a decoder: logits [B, T, vocabulary] of new tokens, with keys and values as state.

    config: content of config.json. tensors: by the checkpoint's own names. precision: one of PRECISIONS, or a function
    that gives one for each weight's name. group_size: weights that share a scale at INT4. Raises ValueError that names
    the tensor or key and the fault.
    """
    return Decoder(config, tensors, precision, group_size, scratch).model()


def convert(checkpoint: str | Path, folder: str | Path, precision: Precision = "FP16", group_size: int = 64) -> None:
    """Write openvino_model.xml and .bin of a checkpoint's folder to another folder. Parameters and errors: of `build`.

    The process needs memory for one weight at a time, and the disk for about the size of the result once more.
    """
    tensors, folder = Checkpoint(checkpoint), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as place:
        scratch = Scratch(Path(place) / "weights")
        model = build(tensors.config, tensors, precision, group_size, scratch)
        # Positions need FP32: their frequencies, rounded to FP16, would be off by whole angles in long texts.
        ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
        del model, scratch  # an open file cannot be removed everywhere
