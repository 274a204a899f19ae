"""Small language models whose tokens can be computed by hand: `arithmetic` depends on all that a runtime must pass on,
`recitation` says a given text. Their tokens are bytes, and one more token ends an answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

BYTES = 256
END = BYTES  # the token that ends an answer
VOCABULARY = BYTES + 1


def save_arithmetic(folder: Path) -> Path:
    """Write `arithmetic_model` with its tokenizers. Returns the folder."""
    return _save(arithmetic_model(), folder)


def arithmetic_model() -> ov.Model:
    """The model whose next token is (sum of all tokens + 3 * last position + 7 * length of the mask) % 256.

    The sum is its state, as the cache is in a real model.
    """
    ids, mask, positions, beams = _inputs()
    zero = ops.constant(np.zeros(1, np.float32))  # the CPU keeps a state in FP32; the sums are exact below 2 ** 24
    earlier = ops.convert(ops.read_value(zero, "sum", ov.Type.f32, ov.PartialShape([1])), "i64")
    total = ops.add(earlier, ops.reduce_sum(ids, np.array([0, 1]), False))
    mask_length = ops.reduce_sum(mask, np.array([0, 1]), False)
    weighted = [ops.multiply(_last(positions), np.int64(3)), ops.multiply(mask_length, np.int64(7))]
    value = ops.add(ops.add(total, weighted[0]), weighted[1])
    token, inputs = ops.floor_mod(value, np.int64(BYTES)), (ids, mask, positions, beams)
    return _model(token, [ops.assign(ops.convert(total, "f32"), "sum")], inputs)


def arithmetic(prompt: list[int], count: int) -> list[int]:
    """The tokens that `arithmetic_model` makes."""
    made, total, past, new = [], 0, 0, prompt
    for _ in range(count):
        total, past = total + sum(new), past + len(new)
        new = [(total + 3 * (past - 1) + 7 * past) % BYTES]
        made += new
    return made


def save_recitation(folder: Path, tokens: list[int]) -> Path:
    """Write `recitation_model` with its tokenizers. Returns the folder."""
    return _save(recitation_model(tokens), folder)


def recitation_model(tokens: list[int]) -> ov.Model:
    """The model that says `tokens` after a prompt of one byte, again and again."""
    inputs = _inputs()
    place = ops.floor_mod(_last(inputs[2]), np.int64(len(tokens)))
    table = ops.constant(np.array(tokens, np.int64))
    return _model(ops.gather(table, place, np.int64(0)), [], inputs)


def _inputs() -> tuple:
    """The inputs of an exported language model."""
    kinds = {"input_ids": 2, "attention_mask": 2, "position_ids": 2, "beam_idx": 1}  # rank
    inputs = [ops.parameter([-1] * rank, np.int64 if rank == 2 else np.int32) for rank in kinds.values()]
    for name, one in zip(kinds, inputs, strict=True):
        one.output(0).get_tensor().set_names({name})
    return tuple(inputs)


def _last(positions) -> ov.Node:
    """The last position, as [1]."""
    return ops.reshape(ops.reduce_max(positions, np.array([0, 1]), False), np.array([1]), False)


def _model(token, sinks: list, inputs: tuple) -> ov.Model:
    """The model with the logits [1, tokens, VOCABULARY] of a next token [1]."""
    ids, _, _, beams = inputs
    distance = ops.absolute(ops.subtract(ops.constant(np.arange(VOCABULARY)), token))  # [VOCABULARY]
    unused = ops.add(ops.reduce_sum(beams, np.array([0]), False), np.int32(0))
    every = ops.multiply(ops.unsqueeze(ids, np.int64(2)), ops.multiply(ops.convert(unused, "i64"), np.int64(0)))
    logits = ops.convert(ops.negative(ops.add(every, distance)), "f32")  # [1, tokens, VOCABULARY]
    logits.output(0).get_tensor().set_names({"logits"})
    return ov.Model([ops.result(logits)], sinks, list(inputs))


def _save(model: ov.Model, folder: Path) -> Path:
    """Write a model, its tokenizers and its end token. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(model, folder / "openvino_model.xml")
    for name, tokenizer in zip(("tokenizer", "detokenizer"), tokenizers(), strict=True):
        ov.save_model(tokenizer, folder / f"openvino_{name}.xml")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END]}), encoding="utf-8")
    return folder


def tokenizers() -> tuple[ov.Model, ov.Model]:
    """A tokenizer whose tokens are bytes, and its detokenizer, as OpenVINO models."""
    from openvino_tokenizers import convert_tokenizer
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocabulary | {"<end>": END}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    return convert_tokenizer(fast, with_detokenizer=True)
