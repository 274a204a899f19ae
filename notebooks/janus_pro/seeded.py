"""A checkpoint of random weights at any size, as transformers writes them: good for speed, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import JanusConfig, JanusForConditionalGeneration, JanusVisionConfig, JanusVQVAEConfig, LlamaConfig

from notebooks.janus_pro.network import AUTOENCODERS, TOWERS

SHARD = 1 << 29  # weights in a file: 1 GB
WIDTH = 2048


def released() -> JanusConfig:
    """Janus-Pro-1B: two billion weights in all."""
    text = LlamaConfig(
        vocab_size=102400,
        hidden_size=WIDTH,
        intermediate_size=5632,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=16384,
        rms_norm_eps=1e-6,
    )
    vision = JanusVisionConfig(**TOWERS["siglip_large_patch16_384"], projection_dim=WIDTH)
    picture = JanusVQVAEConfig(**AUTOENCODERS["VQ-16"], projection_dim=WIDTH, image_token_embed_dim=WIDTH)
    return JanusConfig(text_config=text, vision_config=vision, vq_config=picture)


def seeded_checkpoint(config: JanusConfig, companions: Path, folder: Path) -> Path:
    """Write a checkpoint of random weights with the keys and shapes of `config` to `folder`: good for speed alone.

    FP16 safetensors in files of SHARD weights, so that no more than one of them is in memory. companions: a checkpoint
    folder whose tokenizer and other small files come along. Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in companions.iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json" and not file.name.endswith(".index.json"):
            shutil.copy2(file, folder)
    (folder / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    with torch.device("meta"):
        shapes = {key: x.shape for key, x in JanusForConditionalGeneration(config).state_dict().items()}
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
        if len(shape) > 1:  # matrices keep the size of what they multiply, so that nothing overflows in 24 layers
            values.mul_((shape.numel() / shape[0]) ** -0.5)
        else:
            values.mul_(0.1).add_(not key.endswith("bias"))
        shard[key] = values.half()
        held, total = held + shape.numel(), total + 2 * shape.numel()
    write()
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder
