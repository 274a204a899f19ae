'''Modelfiles of the OpenVINO fork of Ollama: `read` and `parse` are strict, and `write` is their inverse.

A line is a comment (#) or begins with a word, in small or capital letters. Long values stand in """three quotes""".
'''

from __future__ import annotations

import codecs
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

QUOTES = '"""'
ROLES = ("system", "user", "assistant")
MAX_BYTES = 2**20

# The parameters of Ollama's documentation, and max_new_token and stop_id of the OpenVINO fork.
LISTS = {"stop": str, "stop_id": int}
TYPES = {
    **dict.fromkeys(("num_ctx", "num_predict", "max_new_token", "top_k", "seed", "repeat_last_n", "num_keep"), int),
    **dict.fromkeys(("num_batch", "num_gpu", "main_gpu", "num_thread", "mirostat"), int),
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "tfs_z", "mirostat_tau", "mirostat_eta"), float),
    **dict.fromkeys(("repeat_penalty", "presence_penalty", "frequency_penalty"), float),
    **dict.fromkeys(("penalize_newline", "numa", "low_vram", "use_mmap", "use_mlock"), bool),
    **LISTS,
}


class ModelfileError(ValueError):
    """A Modelfile that cannot be used; the message begins with the line."""


@dataclass
class Modelfile:
    """What a Modelfile says.

    base: a package (.tar.gz), a GGUF file, or the name of another model. parameters: values by name; those of `stop`
    and `stop_id` are lists. messages: (role, text). template: of a prompt, in Go's language.
    """

    base: str
    model_type: str = ""
    device: str = ""
    parameters: dict = field(default_factory=dict)
    system: str = ""
    template: str = ""
    messages: list[tuple[str, str]] = field(default_factory=list)
    licences: list[str] = field(default_factory=list)
    requires: str = ""


def read(path: Path) -> Modelfile:
    """Read a Modelfile in UTF-8, or in UTF-16 with a byte order mark. Raises ModelfileError."""
    data = Path(path).read_bytes()
    if len(data) > MAX_BYTES:
        raise ModelfileError(f"{path} has {len(data)} bytes; a Modelfile has at most {MAX_BYTES}.")
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return parse(data.decode(encoding).replace("\r\n", "\n"))
    except UnicodeDecodeError as error:
        raise ModelfileError(f"{path} is no text in UTF-8 or UTF-16 ({error}).") from error


def parse(text: str) -> Modelfile:
    """Parse the text of a Modelfile. Raises ModelfileError that names the line and the fault."""
    file, seen = Modelfile(""), set()
    for line, word, value in _commands(text):
        if word in seen and word not in ("parameter", "message", "license"):
            raise ModelfileError(f"line {line}: {word.upper()} is there twice.")
        seen.add(word)
        if word == "parameter":
            name, value = _two(value)
            _add_parameter(file.parameters, name, value, line)
        elif word == "message":
            role, content = _two(value)
            if role not in ROLES:
                raise ModelfileError(
                    f"line {line}: MESSAGE has the role {role!r}; it must be one of {', '.join(ROLES)}."
                )
            file.messages.append((role, _unquoted(content, line)))
        elif word == "license":
            file.licences.append(_unquoted(value, line))
        elif word == "adapter":
            raise ModelfileError(
                f"line {line}: ADAPTER is not supported: merge the adapter before you convert the model."
            )
        else:
            setattr(file, FIELDS[word], _unquoted(value, line))
    if not file.base:
        raise ModelfileError("line 1: FROM is missing: it names the package of the model.")
    if file.model_type and file.model_type.lower() != "openvino":
        raise ModelfileError(f'ModelType is {file.model_type!r}; this reader knows "OpenVINO".')
    return file


def write(file: Modelfile) -> str:
    """The text of a Modelfile; `parse` gives it back.

    Raises ModelfileError for what `parse` does not take: an unknown parameter, a role that does not exist, no FROM.
    """
    lines = [f"FROM {_quoted(file.base)}"]
    for word, name in (("ModelType", "model_type"), ("InferDevice", "device"), ("REQUIRES", "requires")):
        if getattr(file, name):
            lines.append(f"{word} {_quoted(getattr(file, name))}")
    for name, value in file.parameters.items():
        for one in value if isinstance(value, list) else [value]:
            lines.append(f"PARAMETER {name} {_quoted(str(one).lower() if isinstance(one, bool) else str(one))}")
    for word, name in (("SYSTEM", "system"), ("TEMPLATE", "template")):
        if getattr(file, name):
            lines.append(f"{word} {_quoted(getattr(file, name))}")
    lines += [f"MESSAGE {role} {_quoted(content)}" for role, content in file.messages]
    lines += [f"LICENSE {_quoted(licence)}" for licence in file.licences]
    text = "\n".join(lines) + "\n"
    parse(text)
    return text


FIELDS = {
    "from": "base",
    "modeltype": "model_type",
    "inferdevice": "device",
    "system": "system",
    "template": "template",
    "requires": "requires",
}
WORDS = {*FIELDS, "parameter", "message", "license", "adapter"}


def _commands(text: str):
    """Yield (line number, word in small letters, value) of each command; a value keeps its quotes."""
    lines, index = text.split("\n"), 0
    while index < len(lines):
        number, line = index + 1, lines[index].strip(" \t\r")
        index += 1
        if not line or line.startswith("#"):
            continue
        match = re.match(r"(\w+)(?:[ \t]+(.*))?$", line, re.DOTALL)
        word = match[1].lower() if match else ""
        if word not in WORDS:
            raise ModelfileError(f"line {number}: {line[:40]!r} begins with no word that a Modelfile knows.")
        value = match[2] or ""
        if QUOTES in value and value.count(QUOTES) == 1:  # it goes on in the next lines
            value = lines[number - 1].split(maxsplit=1)[1].lstrip(" \t")
            while index < len(lines) and value.count(QUOTES) == 1:
                value += "\n" + lines[index]
                index += 1
            value = value.rstrip(" \t\r")
            if value.count(QUOTES) == 1:
                raise ModelfileError(f"line {number}: the three quotes are never closed.")
        if not value:
            raise ModelfileError(f"line {number}: {match[1]} has no value.")
        yield number, word, value


def _two(value: str) -> tuple[str, str]:
    """The first word of a value, and the rest."""
    first, *rest = re.split(r"[ \t]+", value, maxsplit=1)
    return first, rest[0] if rest else ""


def _unquoted(value: str, line: int) -> str:
    """A value without its quotes."""
    if value.startswith(QUOTES):
        inside, end, rest = value[3:].partition(QUOTES)
        if not end or rest.strip(" \t\r"):
            raise ModelfileError(f"line {line}: something follows the three quotes, or they are not closed.")
        return inside
    if value.startswith('"'):
        if len(value) < 2 or not value.endswith('"') or '"' in value[1:-1]:
            raise ModelfileError(f"line {line}: the quotes of {value[:40]} do not match. Put it in {QUOTES}.")
        return value[1:-1]
    if not value:
        raise ModelfileError(f"line {line}: a value is missing.")
    return value


def _quoted(value: str) -> str:
    if value and value.isprintable() and value == value.strip() and '"' not in value:
        return value
    if value.isprintable() and '"' not in value:
        return f'"{value}"'
    if QUOTES in value or value.endswith('"'):
        raise ModelfileError(f"{value[:40]!r} ends with a quote or holds three: a Modelfile cannot say that.")
    return f"{QUOTES}{value}{QUOTES}"


def _add_parameter(parameters: dict, name: str, text: str, line: int) -> None:
    if name not in TYPES:
        raise ModelfileError(f"line {line}: there is no PARAMETER {name!r}.")
    value = _typed(name, _unquoted(text, line), line)
    if name in LISTS:
        parameters.setdefault(name, []).append(value)
    elif name in parameters:
        raise ModelfileError(f"line {line}: PARAMETER {name} is there twice.")
    else:
        parameters[name] = value


def _typed(name: str, text: str, line: int):
    kind = TYPES[name]
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = kind(text) if kind is not bool else None
        if value is None or kind is float and not math.isfinite(value):
            raise ValueError
    except ValueError:
        raise ModelfileError(
            f"line {line}: PARAMETER {name} is {text!r}; it must be of type {kind.__name__}."
        ) from None
    return value
