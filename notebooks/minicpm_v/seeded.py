"""A checkpoint of random weights at any size, laid out as the released ones are: good for speed, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from notebooks.minicpm_v.network import MiniCPMV

SHARD = 1 << 29  # weights in a file: 1 GB
RELEASED = {  # config.json of MiniCPM-V 2.0: 3.4 billion weights
    "model_type": "minicpmv",
    "vocab_size": 122753,
    "hidden_size": 2304,
    "intermediate_size": 5760,
    "num_hidden_layers": 40,
    "num_attention_heads": 36,
    "num_key_value_heads": 36,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
    "tie_word_embeddings": False,
    "query_num": 64,
    "image_size": 448,
    "patch_size": 14,
    "max_slice_nums": 9,
    "scale_resolution": 448,
    "drop_vision_last_layer": True,
}


def seeded_checkpoint(config: Mapping, companions: Path, folder: Path) -> Path:
    """Write a checkpoint of random weights with the keys and shapes of `config` to `folder`: good for speed alone.

    FP16 safetensors in files of SHARD weights, so that no more than one of them is in memory. companions: a checkpoint
    folder whose tokenizer and other small files come along. Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in companions.iterdir():
        if file.suffix != ".safetensors" and "config.json" != file.name and not file.name.endswith(".index.json"):
            shutil.copy2(file, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    with torch.device("meta"):
        shapes = {key: tensor.shape for key, tensor in MiniCPMV(dict(config)).state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    places, shard, held, total = {}, {}, 0, 0

    def write() -> None:
        name = f"model-{len(set(places.values())) + 1:05}.safetensors"
        save_file(shard, folder / name)
        places.update(dict.fromkeys(shard, name))
        shard.clear()

    for key, shape in shapes.items():
        if held and held + shape.numel() > SHARD:
            write()
            held = 0
        values = torch.randn(shape, generator=generator)
        if len(shape) > 1:  # matrices keep the size of what they multiply, so that nothing overflows in 40 layers
            values.mul_((shape.numel() / shape[0]) ** -0.5)
        else:
            values.mul_(0.1).add_(not key.endswith("bias"))
        shard[key] = values.half()
        held, total = held + shape.numel(), total + 2 * shape.numel()
    write()
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder
