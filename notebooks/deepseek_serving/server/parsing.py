"""What a request asks for, read out of its JSON body with the checks, words and statuses of Model Server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException

UNKNOWN_MODEL = "Mediapipe graph definition with requested name is not found"
NUMBERS = {"temperature": (0, 2), "top_p": (0, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)}
UNSUPPORTED = ("tools", "logprobs", "response_format", "logit_bias", "echo", "functions")


class Refused(HTTPException):
    """A request that cannot be answered: status and sentence."""


@dataclass(frozen=True)
class Limits:
    """What a request may be at most; more is refused with a sentence."""

    waiting: int = 128  # requests beyond those computed at once; further ones get 503
    body: int = 2**20  # bytes
    depth: int = 16  # of the JSON
    upload_s: float = 20.0  # seconds in which the body must have come
    retry_after_s: int = 1
    stop_strings: int = 16


def parse(body: Any, *, chat: bool, name: str, max_tokens: int, limits: Limits) -> dict[str, Any]:
    """What is to be computed: model, stream, include_usage, messages or prompt, max_tokens, and `config`, the settings
    that have an equal in GenerationConfig.

    name: the model served. max_tokens: the most that may be asked for. Raises Refused with Model Server's status.
    """
    if not isinstance(body, dict):
        raise Refused(412, "JSON body must be an object")
    if "model" not in body:
        raise Refused(412, "model field is missing in JSON body")
    if not isinstance(body["model"], str):
        raise Refused(412, "model field is not a string")
    if body["model"] != name:
        raise Refused(404, UNKNOWN_MODEL)
    given = {key: value for key, value in body.items() if value is not None}
    for key in UNSUPPORTED:
        if given.get(key):
            raise Refused(400, f"{key} is not supported by this server")
    stream = _typed(given, "stream", bool, "Stream is not bool") or False
    options = _typed(given, "stream_options", dict, "stream_options is not an object")
    if options is not None and not stream:
        raise Refused(400, "stream_options provided, but stream not set to true")
    if set(options or {}) - {"include_usage"}:
        raise Refused(400, "Found unexpected stream options. Properties accepted in stream_options: include_usage")
    usage = _typed(options or {}, "include_usage", bool, "stream_options.include_usage is not a boolean") or False
    return {
        "model": name,
        "stream": stream,
        "include_usage": usage,
        "messages": _messages(given) if chat else None,
        "prompt": None if chat else _prompt(given),
        "max_tokens": _max_tokens(given, max_tokens),
        "config": _config(given, limits),
    }


def _typed(given: dict, key: str, kind: type, sentence: str):
    value = given.get(key)
    if value is not None and type(value) is not kind:
        raise Refused(400, sentence)
    return value


def _messages(given: dict) -> list[dict[str, str]]:
    messages = given.get("messages")
    if messages is None:
        raise Refused(400, "Messages missing in request")
    if not isinstance(messages, list):
        raise Refused(400, "Messages are not an array")
    if not messages:
        raise Refused(400, "Messages array cannot be empty")
    chosen = []
    for message in messages:
        if not isinstance(message, dict):
            raise Refused(400, "Message is not a JSON object")
        role, content = message.get("role"), message.get("content")
        if isinstance(content, list) and content:
            parts = [
                part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
            ]
            if not all(isinstance(text, str) for text in parts):
                raise Refused(400, "Invalid message structure - this model takes text only")
            content = "".join(parts)
        if not isinstance(role, str) or not isinstance(content, str):
            raise Refused(400, "Every message must have both 'content' and 'role' fields")
        chosen.append({"role": role, "content": content})
    return chosen


def _text(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise Refused(400, "Invalid message structure - this model takes text only")
    return part["text"]


def _prompt(given: dict) -> str:
    prompt = _typed(given, "prompt", str, "prompt is not a string")
    if not prompt:
        raise Refused(400, "prompt is missing")
    return prompt


def _max_tokens(given: dict, limit: int) -> int | None:
    for key in ("max_completion_tokens", "max_tokens"):
        if key in given:
            value = given[key]
            if type(value) is not int or value < 0:
                raise Refused(400, f"{key} is not an unsigned integer")
            if value == 0:
                raise Refused(400, f"{key} value should be greater than 0")
            if value > limit:
                raise Refused(400, f"{key} exceeds limit provided in graph config: {limit}")
            return value
    return None


def _config(given: dict, limits: Limits) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for key, (low, high) in NUMBERS.items():
        if key in given:
            config[key] = _number(given, key)
            if not low <= config[key] <= high:
                raise Refused(400, f"{key} out of range({low:.1f}, {high:.1f})")
    if "repetition_penalty" in given:
        config["repetition_penalty"] = _number(given, "repetition_penalty")
        if not 0 < config["repetition_penalty"] <= 10:
            raise Refused(400, "repetition_penalty out of range(0.0, 10.0)")
    for key, name in (("top_k", "top_k"), ("seed", "rng_seed")):
        if key in given:
            value = _typed(given, key, int, f"{key} is not an unsigned integer")
            if not 0 <= value < 2**32:
                raise Refused(400, f"{key} is not an unsigned integer")
            if key == "seed" or value:  # top_k of 0 means all
                config[name] = value
    if "ignore_eos" in given:
        config["ignore_eos"] = _typed(given, "ignore_eos", bool, "ignore_eos accepts values true or false")
    for key in ("n", "best_of"):
        if given.get(key, 1) != 1:
            raise Refused(400, f"{key} other than 1 is not supported by this server")
    stop = given.get("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise Refused(400, "stop is not a string or array of strings")
    if len(stop) > limits.stop_strings:
        raise Refused(400, f"stop array must have no more than {limits.stop_strings} strings")
    if stop:
        config["stop_strings"] = set(stop)
        config["include_stop_str_in_output"] = given.get("stream", False)  # what is streamed cannot be taken back
    return config


def _number(given: dict, key: str) -> float:
    if type(given[key]) not in (int, float):
        raise Refused(400, f"{key} is not a valid number")
    return given[key]
