"""Schemas are let through when openvino_genai can compile them, which the ordinary ones of Pydantic are."""

import pytest

from notebooks.ollama_openvino.server.schema import SchemaError, check

# What Pydantic makes of `class Animal: name: str; legs: list[Leg]` and `class Leg: left: bool; length: float | None`
ANIMAL = {
    "$defs": {
        "Leg": {
            "properties": {
                "left": {"title": "Left", "type": "boolean"},
                "length": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None, "title": "Length"},
            },
            "required": ["left"],
            "title": "Leg",
            "type": "object",
        }
    },
    "properties": {
        "name": {"title": "Name", "type": "string"},
        "legs": {"items": {"$ref": "#/$defs/Leg"}, "title": "Legs", "type": "array"},
    },
    "required": ["name", "legs"],
    "title": "Animal",
    "type": "object",
}


def test_schemas_of_pydantic_are_let_through():
    check(ANIMAL)
    check({"type": "object"})
    check({"type": ["string", "null"], "enum": ["a", None]})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nonsense"}, "# has a value of 'type'"),
        ({"type": []}, "# has a value of 'type'"),
        ({"properties": {"a": {"pattern": "("}}}, "#/a has the word 'pattern'"),
        ({"$ref": "#/nope"}, "# has a value of '\\$ref'"),
        ({"anyOf": []}, "# has a value of 'anyOf'"),
        ({"enum": []}, "# has a value of 'enum'"),
        ({"properties": []}, "#/properties must be a JSON object"),
        ({"items": 3}, "#/items must be a JSON object"),
        ({"maxLength": 10**9}, "# has a value of 'maxLength'"),
        ({"minimum": float("nan")}, "# has a value of 'minimum'"),
        ({"minLength": 5, "maxLength": 2}, "# has minLength above maxLength"),
        ({"anyOf": [{"type": "null"}] * 600}, "more than 500 parts"),
    ],
)
def test_others_are_refused_with_their_place(schema, message):
    with pytest.raises(SchemaError, match=message):
        check(schema)
