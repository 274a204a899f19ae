"""A checkpoint of random weights at the released size, as transformers writes it, to measure speed with."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import JanusConfig, JanusForConditionalGeneration, JanusVisionConfig, JanusVQVAEConfig, LlamaConfig

from notebooks.janus_pro.network import AUTOENCODERS, TOWERS
from utils.models import random_checkpoint

WIDTH = 2048


def released() -> JanusConfig:
    """The configuration of Janus-Pro-1B, which has two billion weights in all."""
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
    """Write random weights for `config`, see `utils.models.random_checkpoint.checkpoint`; returns the folder."""
    with torch.device("meta"):
        network = JanusForConditionalGeneration(config)
    return random_checkpoint.checkpoint(network, config.to_dict(), companions, folder)
