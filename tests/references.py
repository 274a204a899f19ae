"""The outputs of the authors' programs that the tests compare with: keys.json, meta.json and arrays in ORACLES."""

import json
import os
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.oracles import fill

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parent / "oracles")


def files(model: str) -> list[Path]:
    """The files of arrays of a model, in all folders that begin with its name."""
    return sorted(ORACLES.glob(f"{model}*/*.npz"))


def stored(files: list[Path], pattern: str):
    """Runs a test once for every stored array whose key matches: its file and its key."""
    found = [(path, key) for path in files for key in np.load(path) if re.fullmatch(pattern, key)]
    ids = [f"{path.parent.name}-{path.stem}-{key}" for path, key in found]
    return pytest.mark.parametrize(("path", "key"), found, ids=ids)


@cache
def section(path: Path, name: str) -> dict[str, np.ndarray]:
    """The stored arrays of a section, by what they are."""
    with np.load(path) as arrays:
        return {key.partition("/")[2]: arrays[key] for key in arrays if key.startswith(f"{name}/")}


def read(path: Path, file: str) -> dict:
    """A JSON file beside the arrays."""
    return json.loads(path.with_name(file).read_text(encoding="utf-8"))


def sections(path: Path) -> dict[str, dict]:
    """The weights beside the arrays, by section: "keys" are their entries."""
    return read(path, "keys.json")["sections"]


def tensor(key: str, entry: dict) -> torch.Tensor:
    """A weight as the authors' PyTorch program was given it."""
    drawn = fill.pytorch(key, entry["shape"], entry["dtype"], entry.get("scale", 1.0), entry.get("add", 0.0))
    return torch.from_numpy(drawn)
