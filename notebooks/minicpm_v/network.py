"""MiniCPM-V 2.0 and 2.6 in PyTorch, with the key names of the released checkpoints.

Yao et al., "MiniCPM-V: A GPT-4V Level MLLM on Your Phone", 2024: a SigLIP vision tower reads slices of the picture, a
resampler makes 64 embeddings of each, a language model reads them among those of the text. 2.0 has MiniCPM-2B, which
is a Llama with scaled embeddings, branches and logits (Hu et al., "MiniCPM", 2024); 2.6 has Qwen2-7B.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

from notebooks.minicpm_v.pipeline.slicing import resized_positions, sincos_positions
from utils.models.tensors import faults, read_json, save_half, shards

PARTS = ("vpm", "resampler", "llm")
NAME = "MiniCPM-V"  # in messages
WEIGHTS = "model.safetensors"
TABLE = "resampler.pos_embed"  # places of the queries of 2.0; a formula
EMBEDDINGS, HEAD = "llm.model.embed_tokens.weight", "llm.lm_head.weight"
# What a file may hold although the network has no such weights: formulas, and what is cut off a SigLIP for MiniCPM-V.
UNUSED = (
    r"resampler\.pos_embed|vpm\.embeddings\.position_ids|llm\..*rotary_emb\.inv_freq"
    r"|vpm\.(attn_pool|head)\..*|vpm\.(blocks|encoder\.layers)\.{dropped}\..*"
)
SO400M = {  # where a released config.json does not spell it out
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
}


class NaViT(Idefics2VisionTransformer):
    """The vision tower of 2.6: SigLIP that reads pictures of any shape, their patches in a row."""

    def forward(self, pixel_values: Tensor, patch_attention_mask: Tensor | None, position_ids: Tensor) -> Tensor:
        """[N, L, C] for pixel_values [N, 3, P, L * P] in -1..1, P the patch's side.

        patch_attention_mask: [N, L] bool, True where there is a patch; None when there is one everywhere.
        position_ids: [N, L], entries of the table of positions. What is given for padding means nothing.
        """
        x = self.embeddings.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        x = x + self.embeddings.position_embedding(position_ids)
        mask = _keys(patch_attention_mask)
        for layer in self.encoder.layers:
            x = layer(x, mask)
        return self.post_layernorm(x)


class Block(nn.Module):
    """A layer of 2.0's tower, under timm's names."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, hidden), "fc2": nn.Linear(hidden, width)})

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.attn["qkv"](self.norm1(x)).chunk(3, -1)
        x = x + self.attn["proj"](attend(*qkv, self.heads))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))  # the exact GELU; 2.6 has the tanh one


class SigLIP(nn.Module):
    """The vision tower of 2.0, under timm's names (vit_so400m_patch14_siglip_384 without its pooling)."""

    SIDE = 27  # of the square table of positions

    def __init__(self, width: int, heads: int, hidden: int, depth: int, patch: int) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, self.SIDE**2, width))
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, pixel_values: Tensor, pos_embed: Tensor) -> Tensor:
        """[N, L, C] for pixel_values [N, 3, H, W] in -1..1; pos_embed: [1, L, C], the table resized to the patches."""
        x = self.patch_embed["proj"](pixel_values).flatten(2).transpose(1, 2) + pos_embed
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def positions(self, rows: int, columns: int) -> Tensor:
        """[1, rows * columns, C]: `pos_embed` for a picture of so many patches."""
        table = self.pos_embed.detach().float().reshape(self.SIDE, self.SIDE, -1).numpy()
        return torch.from_numpy(resized_positions(table, rows, columns)).flatten(0, 1)[None].to(self.pos_embed)


class Resampler(nn.Module):
    """A fixed number of embeddings of what the tower saw: learnt queries attend to it once.

    In 2.0 (`table`) the queries have places too, on a square grid.
    """

    def __init__(self, queries: int, width: int, inputs: int, table: bool) -> None:
        super().__init__()
        self.width, self.heads = width, width // 128
        if table:
            side = math.isqrt(queries)
            self.pos_embed = nn.Parameter(_grid(side, side, width).clone(), requires_grad=False)
        self.query = nn.Parameter(0.02 * torch.randn(queries, width))
        self.kv_proj = nn.Linear(inputs, width, bias=False) if inputs != width else nn.Identity()
        self.attn = nn.MultiheadAttention(width, self.heads)  # holds the weights
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(width, eps=1e-6) for _ in range(3))
        self.proj = nn.Parameter(width**-0.5 * torch.randn(width, width))

    def forward(self, image_feature: Tensor, pos_embed: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """[N, queries, D] for image_feature [N, L, C].

        pos_embed: [L, N, D], sines and cosines of every patch's column and row (`slicing.sincos_positions`).
        key_padding_mask: [N, L] bool, True where there is no patch; None when there is one everywhere.
        """
        x = self.ln_kv(self.kv_proj(image_feature))
        query = self.ln_q(self.query)
        if hasattr(self, "pos_embed"):
            query = query + self.pos_embed
        weights, biases = self.attn.in_proj_weight.chunk(3), self.attn.in_proj_bias.chunk(3)
        inputs = query[None].expand(x.shape[0], -1, -1), x + pos_embed.transpose(0, 1), x
        q, k, v = (F.linear(y, weight, bias) for y, weight, bias in zip(inputs, weights, biases, strict=True))
        mask = None if key_padding_mask is None else _keys(~key_padding_mask)
        return self.ln_post(self.attn.out_proj(attend(q, k, v, self.heads, mask))) @ self.proj


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Attention of several heads, [N, Q, D] for q [N, Q, D] and k, v [N, L, D]; mask: [N, 1, 1, L] bool or None."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


class MiniCPMV(nn.Module):
    """Vision tower `vpm`, `resampler` and language model `llm`, of the shape that a checkpoint's config.json gives.

    config: its content; "version" is 2.6, or 2.0 which released files leave out. Weights are random until loaded.
    The weights of 2.0's language model are those of the checkpoint times `scale`: it is a plain Llama then. Raises
    ValueError for other versions.
    """

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.config, self.version = config, float(config.get("version", 2.0))
        if self.version not in (2.0, 2.6):
            raise ValueError(f"config.json says version {self.version}; only MiniCPM-V 2.0 and 2.6 are known here.")
        vision = SO400M | config.get("vision_config", {})
        depth = vision["num_hidden_layers"] - config.get("drop_vision_last_layer", True)
        self.dropped = depth if depth < vision["num_hidden_layers"] else None  # a layer that is not there
        if self.version == 2.6:
            known = {"image_size": 980} | vision | {"num_hidden_layers": depth}
            self.vpm = NaViT(_configuration(Idefics2VisionConfig, known))
            self.llm = Qwen2ForCausalLM(_configuration(Qwen2Config, config))
        else:
            sizes = (vision[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size"))
            self.vpm = SigLIP(*sizes, depth, vision["patch_size"])
            self.llm = LlamaForCausalLM(_configuration(LlamaConfig, config | {"tie_word_embeddings": False}))
        with torch.device("cpu"):  # frequencies are no weights: they are there even on the meta device
            self.llm.model.rotary_emb = type(self.llm.model.rotary_emb)(self.llm.config)
        width = config["hidden_size"]
        self.resampler = Resampler(config.get("query_num", 64), width, vision["hidden_size"], self.version == 2.0)

    def encode_images(
        self, pixel_values: Tensor, patch_attention_mask: Tensor, position_ids: Tensor, sizes: Tensor
    ) -> Tensor:
        """[N, queries, D]: what 2.6's language model reads for N slices; the arguments are those of `slicing.Batch`."""
        mask = None if patch_attention_mask.all() else patch_attention_mask
        return self.resample(self.vpm(pixel_values, mask, position_ids), mask, sizes)

    def resample(self, features: Tensor, mask: Tensor | None, sizes: Tensor) -> Tensor:
        """[N, queries, D] for the tower's features [N, L, C] of slices of so many (rows, columns), `sizes` [N, 2].

        mask: [N, L] bool, True where there is a patch; None when there is one everywhere.
        """
        places = [_grid(rows, columns, self.resampler.width) for rows, columns in sizes.tolist()]
        positions = nn.utils.rnn.pad_sequence(places).to(features)
        return self.resampler(features, positions, None if mask is None else ~mask)

    def encode_equal(self, pixel_values: Tensor) -> Tensor:
        """[N, queries, D]: what 2.0's language model reads for N slices of one size, [N, 3, H, W] in -1..1."""
        rows, columns = (side // self.vpm.patch_embed["proj"].kernel_size[0] for side in pixel_values.shape[2:])
        features = self.vpm(pixel_values, self.vpm.positions(rows, columns))
        positions = _grid(rows, columns, self.resampler.width)[:, None].expand(-1, len(features), -1)
        return self.resampler(features, positions.to(features), None)


def scale(key: str, config: dict) -> float:
    """What the weight `key` of a checkpoint is multiplied by, to have 2.0's language model as a plain Llama."""
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
        stored = _found(model, folder)
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


def _configuration(kind: type, given: dict):
    """A configuration of transformers from the fields that it knows."""
    known = {field.name for field in fields(kind)} | {"rope_theta", "rope_scaling"}
    return kind(**{key: x for key, x in given.items() if key in known}, attn_implementation="sdpa")


def _keys(mask: Tensor | None) -> Tensor | None:
    """A mask of keys [N, L] for all heads and queries."""
    return None if mask is None else mask[:, None, None]


@lru_cache(maxsize=64)
def _grid(rows: int, columns: int, width: int) -> Tensor:
    """[rows * columns, width]: `sincos_positions` row by row."""
    return torch.from_numpy(sincos_positions(rows, columns, width)).flatten(0, 1)


class Stored(NamedTuple):
    """Where a tensor is."""

    path: Path
    key: str
    shape: tuple[int, ...]


def _stored(folder: Path) -> dict[str, Stored]:
    """All tensors of a checkpoint by their keys."""
    stored = {}
    for path in shards(folder, WEIGHTS, NAME):
        with safe_open(path, "pt") as file:
            stored |= {key: Stored(path, key, tuple(file.get_slice(key).get_shape())) for key in file.keys()}
    return stored


def _found(model: MiniCPMV, folder: Path) -> dict[str, Stored]:
    """Where the network's tensors are; ValueError unless all are there, and no others."""
    own = {key: tuple(x.shape) for key, x in model.state_dict().items()}
    stored = _stored(folder)
    if model.config.get("tie_word_embeddings", model.version == 2.0) and EMBEDDINGS in stored:
        stored.setdefault(HEAD, stored[EMBEDDINGS])
    unused = re.compile(UNUSED.format(dropped=model.dropped))
    shapes = {key: x.shape for key, x in stored.items()}
    if told := faults(own, shapes, optional=(TABLE,), unused=unused):
        raise ValueError(f"{folder} is no MiniCPM-V {model.version} of the sizes in its config.json. Tensors {told}.")
    return stored


def _tensor(key: str, model: MiniCPMV, stored: dict[str, Stored], dtype: torch.dtype | None) -> Tensor:
    """A weight of the network. The file is mapped anew for each, so that what is copied stays in memory only once."""
    if key not in stored:  # TABLE
        side = math.isqrt(model.resampler.query.shape[0])
        return _grid(side, side, model.resampler.width).to(dtype or torch.float32)
    with safe_open(stored[key].path, "pt") as file:
        x = file.get_tensor(stored[key].key)
    dtype, factor = dtype or x.dtype, scale(key, model.config)
    return x.to(dtype) if factor == 1 else (x.float() * factor).to(dtype)
