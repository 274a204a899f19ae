"""MiniCPM-V checkpoints, of the authors (2.0 or 2.6) or of `save_tiny`: read into `MiniCPMV`, and written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from notebooks.minicpm_v.network.model import MiniCPMV, grid_positions
from utils.models.tensors import read_json, save_half, shards, tensor_mismatches

PARTS = ("vpm", "resampler", "llm")
NAME = "MiniCPM-V"  # in messages
WEIGHTS = "model.safetensors"
TABLE = "resampler.pos_embed"  # positions of the queries of 2.0, which can be computed
EMBEDDINGS, HEAD = "llm.model.embed_tokens.weight", "llm.lm_head.weight"
# Tensors of a file that the network does not have: constants, and the parts of SigLIP that MiniCPM-V leaves out.
UNUSED = (
    r"resampler\.pos_embed|vpm\.embeddings\.position_ids|llm\..*rotary_emb\.inv_freq"
    r"|vpm\.(attn_pool|head)\..*|vpm\.(blocks|encoder\.layers)\.{dropped}\..*"
)


def scale(key: str, config: dict) -> float:
    """The factor for a checkpoint's weight `key` that makes 2.0's language model a plain Llama; 1 for all others."""
    if float(config.get("version", 2.0)) != 2.0:
        return 1.0
    if key == EMBEDDINGS:
        return config["scale_emb"]
    if key == HEAD:
        return config["dim_model_base"] / config["hidden_size"]
    if key.endswith((".o_proj.weight", ".down_proj.weight")):
        return config["scale_depth"] / math.sqrt(config["num_hidden_layers"])
    return 1.0


def load(folder: str | Path, parts: Iterable[str] = PARTS, dtype: torch.dtype | None = None) -> MiniCPMV:
    """The network that a checkpoint folder holds, ready for inference.

    folder: config.json and model.safetensors, or several .safetensors with their model.safetensors.index.json, of the
    authors (2.0 or 2.6) or of `save_tiny`. parts: which of `PARTS` to read; the others stay without weights (on the
    meta device). dtype: of the weights. None leaves them as they are stored and mapped into memory, so that only what
    is used is read; those that `scale` changes are rounded to the stored type again. Raises ValueError when a file is
    missing or damaged, or the files hold other tensors than the network has (listed).
    """
    folder = Path(folder)
    config = read_json(folder / "config.json", NAME)
    try:
        with torch.device("meta"):
            model = MiniCPMV(config)
    except Exception as error:  # transformers raises all kinds
        raise ValueError(f"{folder / 'config.json'} does not describe a MiniCPM-V 2.0 or 2.6: {error!r}.") from error
    try:
        stored = _located_tensors(model, folder)
        for part in parts:
            keys = [f"{part}.{key}" for key in model.get_submodule(part).state_dict()]
            tensors = {key.removeprefix(f"{part}."): _tensor(key, model, stored, dtype) for key in keys}
            model.get_submodule(part).load_state_dict(tensors, assign=True)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder} holds a file that cannot be read whole: {error}. Fetch it again.") from error
    return model.eval()


def save_tiny(folder: str | Path, model: MiniCPMV) -> Path:
    """Write the network as FP16 model.safetensors and its config.json, as `load` reads them; returns the folder.

    Files that are there are replaced once both are written. Raises ValueError, and changes nothing, when a weight is
    not finite in FP16.
    """
    tensors = {key: x.float() / scale(key, model.config) for key, x in model.state_dict().items()}
    return save_half(folder, {WEIGHTS: tensors}, {"config.json": json.dumps(model.config, indent=1) + "\n"})


class StoredTensor(NamedTuple):
    """A tensor in a file."""

    path: Path
    key: str
    shape: tuple[int, ...]


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint by their keys."""
    stored = {}
    for path in shards(folder, WEIGHTS, NAME):
        with safe_open(path, "pt") as file:
            stored |= {key: StoredTensor(path, key, tuple(file.get_slice(key).get_shape())) for key in file.keys()}
    return stored


def _located_tensors(model: MiniCPMV, folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint; ValueError unless they are those of the network, and no others."""
    expected = {key: tuple(x.shape) for key, x in model.state_dict().items()}
    stored = _stored_tensors(folder)
    if model.config.get("tie_word_embeddings", model.version == 2.0) and EMBEDDINGS in stored:
        stored.setdefault(HEAD, stored[EMBEDDINGS])
    unused = re.compile(UNUSED.format(dropped=model.dropped))
    shapes = {key: x.shape for key, x in stored.items()}
    if mismatches := tensor_mismatches(expected, shapes, optional=(TABLE,), unused=unused):
        raise ValueError(
            f"{folder} is no MiniCPM-V {model.version} of the sizes in its config.json. Tensors {mismatches}."
        )
    return stored


def _tensor(key: str, model: MiniCPMV, stored: dict[str, StoredTensor], dtype: torch.dtype | None) -> Tensor:
    """A weight of the network. Its file is mapped for each tensor, so that a copy is not in memory twice."""
    if key not in stored:  # TABLE
        side = math.isqrt(model.resampler.query.shape[0])
        return grid_positions(side, side, model.resampler.width).to(dtype or torch.float32)
    with safe_open(stored[key].path, "pt") as file:
        x = file.get_tensor(stored[key].key)
    dtype = dtype or x.dtype
    factor = scale(key, model.config)
    return x.to(dtype) if factor == 1 else (x.float() * factor).to(dtype)
