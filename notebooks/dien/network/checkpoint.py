"""The tiny checkpoint: `<form>.safetensors` in FP16 and `<form>.json`, the configuration, in one folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from notebooks.dien.network.dien import DIEN, Config
from utils import paths
from utils.models.tensors import save_half

TINY = paths.notebook_dir(__package__) / "tiny"


def save_tiny(network: DIEN, form: str, folder: Path = TINY) -> Path:
    """Write both files of a form to `folder`, in place of earlier ones; returns the .safetensors file.

    Raises ValueError, and changes nothing, when a parameter is not finite in FP16.
    """
    config = json.dumps(asdict(network.config), indent=1) + "\n"
    save_half(folder, {f"{form}.safetensors": network.state_dict()}, {f"{form}.json": config})
    return folder / f"{form}.safetensors"


def load_tiny(form: str = "dien", folder: Path = TINY) -> DIEN:
    """The trained network of a form, FP32, in evaluation mode. Raises ValueError when the folder lacks the form."""
    path = folder / f"{form}.safetensors"
    if not path.is_file():
        raise ValueError(f"{folder} holds no {path.name}. Train it: make train CASE=dien.")
    config = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    network = DIEN(Config(**{key: tuple(x) if isinstance(x, list) else x for key, x in config.items()}))
    network.load_state_dict({name: torch.from_numpy(x.astype(np.float32)) for name, x in load_file(path).items()})
    return network.eval()
