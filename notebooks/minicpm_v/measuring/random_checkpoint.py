"""A checkpoint of random weights at the released size, to measure speed with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from notebooks.minicpm_v.network import MiniCPMV
from utils.models import random_checkpoint

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
    """Write random weights for `config`, see `utils.models.random_checkpoint.checkpoint`; returns the folder."""
    with torch.device("meta"):
        network = MiniCPMV(dict(config))
    return random_checkpoint.checkpoint(network, config, companions, folder)
