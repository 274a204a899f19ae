"""The JSON bodies of Ollama's requests, checked: each field by its type, unknown combinations by a message."""

from __future__ import annotations

import json
import re
from typing import Any

from notebooks.ollama_openvino.server import parameters, schema
from notebooks.ollama_openvino.server.models import keep_alive
from utils.serving.guard import RequestError

ROLES = ("system", "user", "assistant")
MAX_TEXTS = 2048  # of one request for embeddings
DEVICE = re.compile(r"[A-Za-z0-9_.:,()-]{0,100}")


def check(path: str, body: Any) -> dict[str, Any]:
    """The checked fields of the body of a request to `path`. Raises RequestError."""
    if not isinstance(body, dict):
        raise RequestError(400, "The body must be a JSON object.")
    fields = {key: value for key, value in body.items() if value is not None}
    return CHECKS[path](fields)


def _generate(fields: dict) -> dict:
    for name, way in (
        ("suffix", "this server fills no gaps"),
        ("context", "send the conversation to /api/chat"),
        ("template", "the package has a chat template, which is applied"),
    ):
        if fields.get(name):
            raise RequestError(400, f"{name} is not supported: {way}.")
    _no_pictures(fields)
    common = _common(fields)
    prompt, system = _text(fields, "prompt"), _text(fields, "system")
    messages = [{"role": "system", "content": system}] if system else []
    raw = _flag(fields, "raw", False)
    if raw and system:
        raise RequestError(400, "raw sends the prompt as it is: system has no place in it.")
    return common | {"prompt": prompt if raw else None, "messages": messages + _user(prompt), "load": not prompt}


def _chat(fields: dict) -> dict:
    messages = fields.get("messages", [])
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise RequestError(400, "messages must be a list of JSON objects.")
    if fields.get("tools"):
        raise RequestError(400, f"{_name(fields)} does not support tools.")
    checked = []
    for message in messages:
        _no_pictures(message)
        role, content = message.get("role"), message.get("content") or ""
        if role not in ROLES or not isinstance(content, str):
            raise RequestError(400, f"A message needs a role ({', '.join(ROLES)}) and a content, which is a text.")
        if message.get("tool_calls"):
            raise RequestError(400, "tool_calls are not supported.")
        checked.append({"role": role, "content": content})
    return _common(fields) | {"prompt": None, "messages": checked, "load": not checked}


def _common(fields: dict) -> dict:
    """What requests for text have in common."""
    if fields.get("logprobs") or fields.get("top_logprobs"):
        raise RequestError(400, "logprobs are not supported.")
    think = fields.get("think")
    if think is not None and not isinstance(think, bool | str):
        raise RequestError(400, "think must be true, false or a text.")
    return {
        "model": _name(fields),
        "stream": _flag(fields, "stream", True),
        "options": parameters.check(fields.get("options", {})),
        "keep_alive": keep_alive(fields.get("keep_alive")),
        "think": think,
        "schema": _schema(fields.get("format")),
    }


def _embed(fields: dict) -> dict:
    texts = fields.get("input", fields.get("prompt", []))
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or len(texts) > MAX_TEXTS or not all(isinstance(text, str) for text in texts):
        raise RequestError(400, f"input must be a text or a list of at most {MAX_TEXTS} texts.")
    dimensions = fields.get("dimensions", 0)
    if type(dimensions) is not int or dimensions < 0:
        raise RequestError(400, "dimensions must be a whole number from 1 on.")
    parameters.check(fields.get("options", {}))
    return {
        "model": _name(fields),
        "texts": texts,
        "truncate": _flag(fields, "truncate", True),
        "dimensions": dimensions,
        "keep_alive": keep_alive(fields.get("keep_alive")),
    }


def _create(fields: dict) -> dict:
    for name, way in (
        ("quantize", "compress the model before you pack it"),
        ("adapters", "merge the adapter before you convert the model"),
        ("template", "the package has a chat template, which is applied"),
        ("modelfile", "read it on your side (python -m notebooks.ollama_openvino create -f Modelfile)"),
    ):
        if fields.get(name):
            raise RequestError(400, f"{name} is not supported: {way}.")
    files, base = fields.get("files", {}), _text(fields, "from")
    if not isinstance(files, dict) or not all(isinstance(each, str) for each in files.values()):
        raise RequestError(400, "files must be a JSON object of names and digests.")
    if bool(base) == bool(files) or len(files) > 1:
        raise RequestError(400, "Give either from, the name of a model, or one file: a tar.gz package or a GGUF file.")
    device, kind = _text(fields, "infer_device"), _text(fields, "model_type")
    if not DEVICE.fullmatch(device):
        raise RequestError(400, f"infer_device is {device!r}; give the name of a device, such as CPU or AUTO:GPU,CPU.")
    if kind.lower() not in ("", "openvino"):
        raise RequestError(400, f"model_type is {kind!r}; this server knows OpenVINO.")
    licence = fields.get("license", "")
    licence = "\n".join(map(str, licence)) if isinstance(licence, list) else str(licence)
    messages = _chat({"model": "x", "messages": fields.get("messages", [])})["messages"]
    settings = {"system": _text(fields, "system"), "license": licence, "messages": messages}
    settings["parameters"] = parameters.check(fields.get("parameters", {}), "parameters")
    return {
        "model": _name(fields),
        "from": base,
        "file": next(iter(files.values()), ""),
        "device": device,
        "stream": _flag(fields, "stream", True),
        "settings": {key: value for key, value in settings.items() if value},
    }


def _show(fields: dict) -> dict:
    return {"model": _name(fields)}


def _copy(fields: dict) -> dict:
    source, destination = _text(fields, "source"), _text(fields, "destination")
    if not source or not destination:
        raise RequestError(400, "source and destination must name models.")
    return {"source": source, "destination": destination}


CHECKS = {
    "/api/generate": _generate,
    "/api/chat": _chat,
    "/api/embed": _embed,
    "/api/embeddings": _embed,
    "/api/create": _create,
    "/api/show": _show,
    "/api/copy": _copy,
    "/api/delete": _show,
}


def _name(fields: dict) -> str:
    name = fields.get("model") or fields.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(400, "model is missing: it must name one.")
    return name


def _text(fields: dict, key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise RequestError(400, f"{key} must be a text.")
    return value


def _flag(fields: dict, key: str, default: bool) -> bool:
    value = fields.get(key, default)
    if not isinstance(value, bool):
        raise RequestError(400, f"{key} must be true or false.")
    return value


def _user(prompt: str) -> list[dict]:
    return [{"role": "user", "content": prompt}] if prompt else []


def _no_pictures(fields: dict) -> None:
    if fields.get("images"):
        raise RequestError(400, "This server has no model that sees images: send text only.")


def _schema(form: Any) -> str | None:
    """The JSON schema of a `format` field as a text, or None."""
    if form in (None, ""):
        return None
    if form == "json":
        return '{"type": "object"}'
    if not isinstance(form, dict):
        raise RequestError(400, 'format must be "json" or a JSON schema.')
    try:
        schema.check(form)
    except schema.SchemaError as error:
        raise RequestError(400, f"format is no JSON schema that this server can follow: {error}") from error
    return json.dumps(form)
