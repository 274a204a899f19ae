"""Check the files and tensors of a checkpoint against a network, with error messages that list what differs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAX_LISTED = 12  # names in an error message


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def tensor_mismatches(
    expected: Mapping[str, Sequence[int]],
    found: Mapping[str, Sequence[int]],
    *,
    optional: Collection[str] = (),
    unused: re.Pattern | None = None,
    not_finite: Iterable[str] = (),
) -> str:
    """How tensors differ from the expected ones, for the end of an error message; empty if they do not.

    expected, found: shapes by name. optional: names that may be missing. unused: matches names to ignore.
    not_finite: names of tensors that hold NaN or infinity.
    """
    kinds = {
        "missing": [key for key in expected if key not in found and key not in optional],
        "not known to it": [key for key in found if key not in expected and not (unused and unused.fullmatch(key))],
        "of another shape": [key for key in expected if key in found and tuple(expected[key]) != tuple(found[key])],
        "not finite": list(not_finite),
    }
    return "; ".join(f"{kind}: {listed(keys)}" for kind, keys in kinds.items() if keys)


def read_json(path: Path, model: str) -> dict:
    """The object in a JSON file of a checkpoint folder of `model`. Raises ValueError for any other content."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Name the folder of a {model} checkpoint.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no object. Name the folder of a {model} checkpoint.")
    return content


def shards(folder: Path, name: str, model: str) -> list[Path]:
    """The file `name` of a checkpoint folder of `model`, or the files that its index lists instead.

    Raises ValueError for missing files, and for an index that lists no files or files outside the folder.
    """
    index, names = folder / f"{name}.index.json", {name}
    if index.is_file():
        names = set(read_json(index, model).get("weight_map", {}).values())
        if not names or any(Path(name).name != name for name in names):
            raise ValueError(f"{index} names no files, or some outside its folder. Fetch it again.")
    if absent := sorted(name for name in names if not (folder / name).is_file()):
        raise ValueError(f"{folder} lacks {listed(absent)}. Name the folder of a whole {model} checkpoint.")
    return [folder / name for name in sorted(names)]


def save_half(
    folder: str | Path, weights: Mapping[str, Mapping[str, Tensor]], texts: Mapping[str, str] | None = None
) -> Path:
    """Write tensors as FP16 safetensors, and texts, each under its file name; returns the folder.

    Existing files are replaced once all new ones are written. Raises ValueError, and changes nothing, when a value is
    not finite in FP16.
    """
    import torch
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".partial-", dir=folder) as written:
        for name, tensors in weights.items():
            half = {key: x.detach().half() if x.is_floating_point() else x for key, x in tensors.items()}
            if not_finite := [key for key, x in half.items() if not torch.isfinite(x).all()]:
                raise ValueError(
                    f"{Path(name).stem} cannot be saved in FP16, there are values not finite: {listed(not_finite)}."
                )
            save_file({key: x.contiguous() for key, x in half.items()}, Path(written) / name, {"format": "pt"})
        for name, text in (texts or {}).items():
            (Path(written) / name).write_text(text, encoding="utf-8")
        for file in Path(written).iterdir():
            os.replace(file, folder / file.name)
    return folder
