"""A LoRA adapter in the weights of a checkpoint: W + B A in place of W.

The result is a transformers folder like any other: it exports, compresses and runs without an adapter.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

PREFIX = "base_model.model."  # of PEFT's names


def merge(checkpoint: Path, adapter: Path, folder: Path) -> None:
    """Write the transformers folder `checkpoint` with the matrices of a safetensors file of PEFT added.

    Whole layers of the file replace those of the checkpoint. Sums are computed in FP32 and stored in the checkpoint's
    type. Raises ValueError for an adapter of another model.
    """
    from safetensors.torch import load_file, save_file

    weights, matrices = load_file(checkpoint / "model.safetensors"), load_file(adapter)
    downs = [name for name in matrices if name.endswith(".lora_A.weight")]
    if not downs:
        raise ValueError(f"{adapter} has no matrices of LoRA (names that end with .lora_A.weight).")
    changed = {name.removeprefix(PREFIX): values for name, values in matrices.items() if ".lora_" not in name}
    for name in downs:
        target = name.removeprefix(PREFIX).replace(".lora_A", "")
        product = matrices[name.replace(".lora_A", ".lora_B")].float() @ matrices[name].float()
        changed[target] = weights[target].float() + product if _fits(weights, target, product) else product
    for target, values in changed.items():
        if not _fits(weights, target, values):
            shape = tuple(values.shape)
            raise ValueError(f"{adapter} is of another model: {checkpoint} has no {target} of the shape {shape}.")
        weights[target] = values.to(weights[target].dtype)
    folder.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.iterdir():
        if file.is_file() and file.name not in ("model.safetensors", "manifest.json"):
            shutil.copy2(file, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _fits(weights: Mapping, name: str, values) -> bool:
    return name in weights and weights[name].shape == values.shape
