"""Which JSON schemas may constrain an answer.

openvino_genai compiles a schema in a step of the engine, where a mistake in it would end all other answers. So only
schemas of known words and kinds are let through.
"""

from __future__ import annotations

from typing import Any

TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}
NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment"}  # they constrain nothing
COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
MAX_PARTS = 500  # schemas within a schema
MAX_COUNT = 10_000  # of characters, items and properties


class SchemaError(ValueError):
    """A schema that is not let through; the message names the place."""


def check(schema: dict) -> None:
    """Raise SchemaError for a schema that openvino_genai may not be able to compile."""
    definitions = {}
    for name in ("$defs", "definitions"):
        definitions |= {f"#/{name}/{key}": value for key, value in _dict(schema.get(name, {}), f"#/{name}").items()}
    waiting, seen = [("#", schema), *definitions.items()], 0
    while waiting:
        place, part = waiting.pop()
        seen += 1
        if seen > MAX_PARTS:
            raise SchemaError(f"it has more than {MAX_PARTS} parts.")
        waiting += [(f"{place}/{key}", inner) for key, inner in _parts(place, _dict(part, place), definitions)]


def _parts(place: str, schema: dict, definitions: dict) -> list[tuple[str, Any]]:
    """Check one schema, and return those within it."""
    inner: list[tuple[str, Any]] = []
    for word, value in schema.items():
        if word == "type":
            kinds = value if isinstance(value, list) else [value]
            _expect(bool(kinds) and all(isinstance(kind, str) and kind in TYPES for kind in kinds), place, word)
        elif word == "properties":
            inner += list(_dict(value, f"{place}/{word}").items())
        elif word == "required":
            _expect(isinstance(value, list) and all(isinstance(name, str) for name in value), place, word)
        elif word in ("items", "additionalProperties") and not isinstance(value, bool):
            inner.append((word, value))
        elif word in ("anyOf", "oneOf"):
            _expect(isinstance(value, list) and bool(value), place, word)
            inner += [(f"{word}/{number}", one) for number, one in enumerate(value)]
        elif word == "$ref":
            _expect(isinstance(value, str) and (value == "#" or value in definitions), place, word)
        elif word == "enum":
            _expect(isinstance(value, list) and bool(value), place, word)
        elif word in COUNTS:
            _expect(type(value) is int and 0 <= value <= MAX_COUNT, place, word)
        elif word in NUMBERS:
            _expect(type(value) in (int, float) and abs(value) < 2**53, place, word)
        elif word not in NOTES | {"const", "items", "additionalProperties", "$defs", "definitions"}:
            raise SchemaError(f"{place} has the word {word!r}, which is not supported.")
    for low, high in (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum")):
        if schema.get(low, 0) > schema.get(high, float("inf")):
            raise SchemaError(f"{place} has {low} above {high}.")
    return inner


def _dict(value: Any, place: str) -> dict:
    if not isinstance(value, dict):
        raise SchemaError(f"{place} must be a JSON object.")
    return value


def _expect(fine: bool, place: str, word: str) -> None:
    if not fine:
        raise SchemaError(f"{place} has a value of {word!r} that is not supported.")
