"""Ollama's options as settings of openvino_genai.

SETTINGS become fields of GenerationConfig. IGNORED say how llama.cpp uses the machine. NEUTRAL change the text in ways
that openvino_genai does not have, so they are accepted only at the values that change nothing.
"""

from __future__ import annotations

import json
import math
import random
from typing import Any, NamedTuple

from utils.serving.guard import RequestError

MAX_STOP = 16  # stop strings of a request
MAX_STOP_CHARACTERS = 200  # of one of them
SEEDS = 2**32
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repeat_penalty": 1.1}  # as Ollama documents them
SETTINGS = {  # option: (field, type, smallest, largest)
    "temperature": ("temperature", float, 0, 100),
    "top_k": ("top_k", int, -1, 10**6),  # 0 and below: all tokens
    "top_p": ("top_p", float, 0, 1),
    "min_p": ("min_p", float, 0, 1),
    "repeat_penalty": ("repetition_penalty", float, 0.01, 10),
    "presence_penalty": ("presence_penalty", float, -2, 2),
    "frequency_penalty": ("frequency_penalty", float, -2, 2),
    "seed": ("rng_seed", int, -(2**63), 2**63),  # negative: another one each time
}
LENGTHS = {"num_predict": -2, "max_new_token": -2, "num_ctx": 1}  # option: smallest value
NEUTRAL = {
    "mirostat": {0},
    "typical_p": {1.0},
    "tfs_z": {1.0},
    "repeat_last_n": {-1, 64},  # openvino_genai counts the whole text
    "penalize_newline": {True},
}
IGNORED = {
    *("numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mmap"),
    *("use_mlock", "embedding_only", "num_thread", "num_keep", "mirostat_tau", "mirostat_eta"),
}
KNOWN = {*SETTINGS, *LENGTHS, *NEUTRAL, *IGNORED, "stop", "stop_id"}


class Sampling(NamedTuple):
    """How to generate an answer.

    fields: of GenerationConfig. stop: strings that end the answer and are not part of it. stop_ids: tokens that end it.
    length: the most tokens of the answer, negative for as many as fit. context: the most with those of the prompt.
    """

    fields: dict[str, Any]
    stop: tuple[str, ...]
    stop_ids: frozenset[int]
    length: int
    context: int


def check(options: Any, where: str = "options") -> dict[str, Any]:
    """The options that are given, checked. Raises RequestError that names the option and what it may be."""
    if not isinstance(options, dict):
        raise RequestError(400, f"{where} must be a JSON object.")
    options = {name: value for name, value in options.items() if value is not None}
    for name, value in options.items():
        if name not in KNOWN:
            raise RequestError(400, f"{where}: there is no option {name!r}. There are: {', '.join(sorted(KNOWN))}.")
        if name in SETTINGS:
            _, kind, low, high = SETTINGS[name]
            _check_number(where, name, value, kind, low, high)
        elif name in LENGTHS:
            _check_number(where, name, value, int, LENGTHS[name], 2**31)
        elif name in NEUTRAL and not any(value == each for each in NEUTRAL[name]):
            values = " or ".join(json.dumps(each) for each in sorted(NEUTRAL[name]))
            raise RequestError(400, f"{where}: {name} is not supported, except as {values}, which changes nothing.")
    _stop(options.get("stop", []), where)
    ids = options.get("stop_id", [])
    if not isinstance(ids, list) or len(ids) > MAX_STOP or not all(type(each) is int and each >= 0 for each in ids):
        raise RequestError(400, f"{where}: stop_id must be a list of at most {MAX_STOP} token ids.")
    return options


def sampling(model: dict[str, Any], request: dict[str, Any], context: int) -> Sampling:
    """What a model's parameters and a request's options, both checked, come to; the request's come first.

    context: of the model, in tokens.
    """
    options = DEFAULTS | model | request
    fields = {SETTINGS[name][0]: SETTINGS[name][1](value) for name, value in options.items() if name in SETTINGS}
    if fields["temperature"] == 0:  # greedy: always the token with the highest logit
        del fields["temperature"], fields["top_k"], fields["top_p"]
        fields.pop("min_p", None)
        fields["do_sample"] = False
    else:
        fields["do_sample"] = True
        if fields["top_k"] <= 0:
            del fields["top_k"]
        if fields["top_p"] == 0:
            fields["top_k"] = 1
            del fields["top_p"]
    seed = fields.get("rng_seed", -1)
    fields["rng_seed"] = seed % SEEDS if seed >= 0 else random.randrange(SEEDS)
    length = int(options.get("num_predict", options.get("max_new_token", -1)))
    stop = tuple(each for each in _stop(options.get("stop", []), "stop") if each)  # an empty one ends nothing
    context = int(min(context, options.get("num_ctx", context)))
    return Sampling(fields, stop, frozenset(options.get("stop_id", [])), length, context)


def _stop(value: Any, where: str) -> list[str]:
    value = [value] if isinstance(value, str) else value
    fine = isinstance(value, list) and len(value) <= MAX_STOP
    if not fine or not all(isinstance(each, str) and len(each) <= MAX_STOP_CHARACTERS for each in value):
        raise RequestError(
            400,
            f"{where}: stop must be a list of at most {MAX_STOP} texts of at most {MAX_STOP_CHARACTERS} characters.",
        )
    return value


def _check_number(where: str, name: str, value: Any, kind: type, low: float, high: float) -> None:
    fine = type(value) is int or (
        type(value) is float and math.isfinite(value) and (kind is float or value.is_integer())
    )
    if not fine:
        raise RequestError(
            400, f"{where}: {name} must be {'a whole number' if kind is int else 'a number'}, not {value!r}."
        )
    if not low <= value <= high:
        raise RequestError(400, f"{where}: {name} is {value}; it must lie between {low} and {high}.")
