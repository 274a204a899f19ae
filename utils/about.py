"""What the front page says about a notebook, read from the file `about.toml` in its folder."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

LEVELS = ["beginner", "intermediate", "advanced"]
TEXT = {"type": "string", "pattern": r"^\S(.*\S)?$"}
SCHEMA = {
    "order": {"type": "integer", "minimum": 1},
    "level": {"enum": LEVELS},
    "summary": {"type": "string", "pattern": r"^[A-Z][^.]*\.$", "maxLength": 160},
    "thumbnail": {"file": {"type": "string", "pattern": r"^[\w.-]+$"}, "alt": TEXT},
    "number": {"metric": TEXT, "precision": TEXT, "text": TEXT},
    "released": {"weights": TEXT, "run": TEXT, "tested": TEXT},
}


class InvalidAbout(ValueError):
    """An about.toml that cannot be read, lacks a field, or names a file that is not there."""


@dataclass(frozen=True)
class Thumbnail:
    """A small picture that the model made; file: its name in the notebook's folder."""

    file: str
    alt: str


@dataclass(frozen=True)
class Number:
    """The one number of the catalogue: a metric at a precision, and the text around it.

    The text's fields are `{value}`, `{pytorch}` (PyTorch's value), `{percent}` (of a share), `{complement}` (100 %
    less that), `{count}` and `{of}` (of a share of so many trials).
    """

    metric: str
    precision: str
    text: str


@dataclass(frozen=True)
class Released:
    """weights: the authors' checkpoints; run: what was run with them here; tested: what was tested without them."""

    weights: str
    run: str
    tested: str


@dataclass(frozen=True)
class About:
    """order: the notebook's place in the learning order; level: one of LEVELS; summary: one sentence."""

    case: str
    order: int
    level: str
    summary: str
    thumbnail: Thumbnail
    number: Number
    released: Released


def load(folder: Path) -> About:
    """Read `about.toml` of a notebook's folder. Raises InvalidAbout, which names the file, the field and the fault."""
    import jsonschema

    path = folder / "about.toml"
    where = f"notebooks/{folder.name}/about.toml"
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidAbout(f"{where} cannot be read: {error}. Copy utils/template's and fill it in.") from error
    validator = jsonschema.Draft202012Validator(_object(SCHEMA))
    if error := jsonschema.exceptions.best_match(validator.iter_errors(fields)):
        raise InvalidAbout(f"{where}, {error.json_path}: {error.message}. utils/template has an example.")
    if not (folder / fields["thumbnail"]["file"]).is_file():
        picture = f"{folder.name}/{fields['thumbnail']['file']}"
        raise InvalidAbout(f"{where} names the thumbnail {picture}, which is missing. Make it of what the model made.")
    return About(
        case=folder.name,
        order=fields["order"],
        level=fields["level"],
        summary=fields["summary"],
        thumbnail=Thumbnail(**fields["thumbnail"]),
        number=Number(**fields["number"]),
        released=Released(**fields["released"]),
    )


def _object(fields: dict) -> dict:
    """A JSON schema in which every field is required and no other is allowed."""
    properties = {
        name: schema if {"type", "enum"} & set(schema) else _object(schema) for name, schema in fields.items()
    }
    return {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}
