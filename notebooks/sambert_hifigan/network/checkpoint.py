"""Reads and writes the checkpoint folders of KAN-TTS, strictly and without running code in them.

A released voice has `am/` (acoustic model) and `voc/` (vocoder), each with `config.yaml` and `ckpt/checkpoint_N.pth`.
Checkpoints of this collection have `model.safetensors` in place of `ckpt/`, with the same names of tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from utils.models.tensors import save_half, tensor_mismatches
from utils.weights import load_torch

CONFIG, WEIGHTS = "config.yaml", "model.safetensors"
NUMBERED = re.compile(r"checkpoint_(\d+)\.pth")


def read_config(folder: str | Path) -> dict:
    """The content of a folder's config.yaml. Raises ValueError when it cannot be read or is no mapping."""
    path = Path(folder) / CONFIG
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Name the am or voc folder of a KAN-TTS voice.") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no settings. Name the am or voc folder of a KAN-TTS voice.")
    return config


def parameters(config: dict, network: str) -> dict:
    """The parameters of a network in config.yaml, under Model / `network` / params. Raises ValueError without them."""
    try:
        return dict(config["Model"][network]["params"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"The configuration has no Model / {network} / params. Is it that of another model?"
        ) from error


def read_tensors(folder: str | Path, *path: str) -> tuple[dict[str, Tensor], Path]:
    """The float32 tensors of a folder by name, and their file: model.safetensors or the last checkpoint_N.

    path: the keys under which a released file keeps them, such as ("model", "generator"). Raises ValueError for a
    missing or damaged file, and for one without tensors under these keys.
    """
    folder = Path(folder)
    numbered = {int(match[1]): file for file in folder.glob("ckpt/*.pth") if (match := NUMBERED.fullmatch(file.name))}
    file = folder / WEIGHTS
    if file.is_file():
        try:
            stored = load_file(file)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{file} cannot be read whole ({error}). Fetch it again.") from error
    elif numbered:
        file = numbered[max(numbered)]
        stored = load_torch(file)
        for key in path:
            stored = stored.get(key) if isinstance(stored, dict) else None
    else:
        raise ValueError(f"{folder} has neither {WEIGHTS} nor ckpt/checkpoint_N.pth. Name the folder of a whole voice.")
    if not isinstance(stored, dict) or not stored or not all(isinstance(x, Tensor) for x in stored.values()):
        raise ValueError(f"{file} holds no tensors under {' / '.join(path)}. Is it the file of another model?")
    stored = {key.removeprefix("module."): x for key, x in stored.items()}
    return {key: x.float() if x.is_floating_point() else x for key, x in stored.items()}, file


def check(
    expected: dict[str, torch.Size], tensors: dict[str, Tensor], source: Path, optional: Iterable[str] = ()
) -> None:
    """Raise a ValueError that lists all tensors with other names or shapes, or with values that are not finite."""
    broken = [key for key, x in tensors.items() if not torch.isfinite(x).all()]
    shapes = {key: x.shape for key, x in tensors.items()}
    if differences := tensor_mismatches(expected, shapes, optional=set(optional), not_finite=broken):
        raise ValueError(f"{source} is no checkpoint of the network in its {CONFIG}. Tensors {differences}.")


def save(folder: str | Path, config: dict, tensors: dict[str, Tensor]) -> Path:
    """Write config.yaml and the tensors as FP16 safetensors; returns the folder.

    Existing files are replaced once both are written. Raises ValueError, and changes nothing, for a value that is not
    finite in FP16.
    """
    content = yaml.safe_dump(config, allow_unicode=True, sort_keys=False)
    return save_half(folder, {WEIGHTS: tensors}, {CONFIG: content})
