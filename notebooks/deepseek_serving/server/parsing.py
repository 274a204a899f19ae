"""Parse the JSON body of a request with the checks, error messages and HTTP statuses of Model Server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from utils.serving import guard
from utils.serving.guard import RequestError

UNKNOWN_MODEL = "Mediapipe graph definition with requested name is not found"
RANGES = {"temperature": (0, 2), "top_p": (0, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)}
UNSUPPORTED = ("tools", "logprobs", "response_format", "logit_bias", "echo", "functions")


@dataclass(frozen=True)
class Limits(guard.Limits):
    """Limits of requests. A request beyond one of them gets an error."""

    stop_strings: int = 16


def parse(body: Any, *, chat: bool, name: str, max_tokens: int, limits: Limits) -> dict[str, Any]:
    """The checked fields of a request: model, stream, include_usage, messages or prompt, max_tokens, config.

    config: settings by their names in GenerationConfig. name: the model that is served. max_tokens: the most that a
    request may ask for. Raises RequestError with Model Server's status and message.
    """
    if not isinstance(body, dict):
        raise RequestError(412, "JSON body must be an object")
    if "model" not in body:
        raise RequestError(412, "model field is missing in JSON body")
    if not isinstance(body["model"], str):
        raise RequestError(412, "model field is not a string")
    if body["model"] != name:
        raise RequestError(404, UNKNOWN_MODEL)
    fields = {key: value for key, value in body.items() if value is not None}
    for key in UNSUPPORTED:
        if fields.get(key):
            raise RequestError(400, f"{key} is not supported by this server")
    stream = _typed(fields, "stream", bool, "Stream is not bool") or False
    options = _typed(fields, "stream_options", dict, "stream_options is not an object")
    if options is not None and not stream:
        raise RequestError(400, "stream_options provided, but stream not set to true")
    if set(options or {}) - {"include_usage"}:
        raise RequestError(400, "Found unexpected stream options. Properties accepted in stream_options: include_usage")
    usage = _typed(options or {}, "include_usage", bool, "stream_options.include_usage is not a boolean") or False
    return {
        "model": name,
        "stream": stream,
        "include_usage": usage,
        "messages": _messages(fields) if chat else None,
        "prompt": None if chat else _prompt(fields),
        "max_tokens": _max_tokens(fields, max_tokens),
        "config": _config(fields, limits),
    }


def _typed(fields: dict, key: str, kind: type, message: str):
    value = fields.get(key)
    if value is not None and type(value) is not kind:
        raise RequestError(400, message)
    return value


def _messages(fields: dict) -> list[dict[str, str]]:
    messages = fields.get("messages")
    if messages is None:
        raise RequestError(400, "Messages missing in request")
    if not isinstance(messages, list):
        raise RequestError(400, "Messages are not an array")
    if not messages:
        raise RequestError(400, "Messages array cannot be empty")
    chosen = []
    for message in messages:
        if not isinstance(message, dict):
            raise RequestError(400, "Message is not a JSON object")
        role, content = message.get("role"), message.get("content")
        if isinstance(content, list) and content:
            parts = [
                part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
            ]
            if not all(isinstance(text, str) for text in parts):
                raise RequestError(400, "Invalid message structure - this model takes text only")
            content = "".join(parts)
        if not isinstance(role, str) or not isinstance(content, str):
            raise RequestError(400, "Every message must have both 'content' and 'role' fields")
        chosen.append({"role": role, "content": content})
    return chosen


def _prompt(fields: dict) -> str:
    prompt = _typed(fields, "prompt", str, "prompt is not a string")
    if not prompt:
        raise RequestError(400, "prompt is missing")
    return prompt


def _max_tokens(fields: dict, limit: int) -> int | None:
    for key in ("max_completion_tokens", "max_tokens"):
        if key in fields:
            value = fields[key]
            if type(value) is not int or value < 0:
                raise RequestError(400, f"{key} is not an unsigned integer")
            if value == 0:
                raise RequestError(400, f"{key} value should be greater than 0")
            if value > limit:
                raise RequestError(400, f"{key} exceeds limit provided in graph config: {limit}")
            return value
    return None


def _config(fields: dict, limits: Limits) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for key, (low, high) in RANGES.items():
        if key in fields:
            config[key] = _number(fields, key)
            if not low <= config[key] <= high:
                raise RequestError(400, f"{key} out of range({low:.1f}, {high:.1f})")
    if "repetition_penalty" in fields:
        config["repetition_penalty"] = _number(fields, "repetition_penalty")
        if not 0 < config["repetition_penalty"] <= 10:
            raise RequestError(400, "repetition_penalty out of range(0.0, 10.0)")
    for key, name in (("top_k", "top_k"), ("seed", "rng_seed")):
        if key in fields:
            value = _typed(fields, key, int, f"{key} is not an unsigned integer")
            if not 0 <= value < 2**32:
                raise RequestError(400, f"{key} is not an unsigned integer")
            if key == "seed" or value:  # top_k of 0 means all
                config[name] = value
    if "ignore_eos" in fields:
        config["ignore_eos"] = _typed(fields, "ignore_eos", bool, "ignore_eos accepts values true or false")
    for key in ("n", "best_of"):
        if fields.get(key, 1) != 1:
            raise RequestError(400, f"{key} other than 1 is not supported by this server")
    stop = fields.get("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise RequestError(400, "stop is not a string or array of strings")
    if len(stop) > limits.stop_strings:
        raise RequestError(400, f"stop array must have no more than {limits.stop_strings} strings")
    if stop:
        config["stop_strings"] = set(stop)
        config["include_stop_str_in_output"] = fields.get("stream", False)  # what is streamed cannot be taken back
    return config


def _number(fields: dict, key: str) -> float:
    if type(fields[key]) not in (int, float):
        raise RequestError(400, f"{key} is not a valid number")
    return fields[key]
