"""Checkpoints of random weights at any size, laid out as released ones are: good for speed, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

SHARD = 1 << 29  # weights in a file: 1 GB


def checkpoint(network: nn.Module, config: Mapping, companions: Path, folder: Path) -> Path:
    """Write random weights with the keys and shapes of a network, which may lie on the meta device, to `folder`.

    FP16 safetensors in files of SHARD weights, so that no more than one of them is in memory. config: of config.json.
    companions: a checkpoint folder whose tokenizer and other small files come along. Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in companions.iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json" and not file.name.endswith(".index.json"):
            shutil.copy2(file, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    places, shard, held, total = {}, {}, 0, 0

    def write() -> None:
        name = f"model-{len(set(places.values())) + 1:05}.safetensors"
        save_file(shard, folder / name)
        places.update(dict.fromkeys(shard, name))
        shard.clear()

    for key, shape in ((key, x.shape) for key, x in network.state_dict().items()):
        if held and held + shape.numel() > SHARD:
            write()
            held = 0
        values = torch.randn(shape, generator=generator)
        if len(shape) > 1:  # matrices keep the size of what they multiply, so that nothing overflows in many layers
            values.mul_((shape.numel() / shape[0]) ** -0.5)
        else:
            values.mul_(0.1).add_(not key.endswith("bias"))
        shard[key] = values.half()
        held, total = held + shape.numel(), total + 2 * shape.numel()
    write()
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder
