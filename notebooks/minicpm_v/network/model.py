"""MiniCPM-V 2.0 and 2.6 in PyTorch, with the key names of the released checkpoints.

Yao et al., "MiniCPM-V: A GPT-4V Level MLLM on Your Phone", 2024. A SigLIP vision tower encodes slices of a
picture, a resampler maps the features of each to 64 embeddings, and a language model reads these among the embeddings
of the text. 2.0 has MiniCPM-2B, which is a Llama with scaled embeddings, branches and logits (Hu et al., "MiniCPM",
2024); 2.6 has Qwen2-7B.
"""

from __future__ import annotations

import math
from dataclasses import fields
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

from notebooks.minicpm_v.pipeline.slicing import resized_positions, sincos_positions

SO400M = {  # where a released config.json does not spell it out
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
}


class NaViT(Idefics2VisionTransformer):
    """The vision tower of 2.6: SigLIP for pictures of any shape, whose patches are in a row."""

    def forward(self, pixel_values: Tensor, patch_attention_mask: Tensor | None, position_ids: Tensor) -> Tensor:
        """[N, L, C] for pixel_values [N, 3, P, L * P] in -1..1, P the patch's side.

        patch_attention_mask: [N, L] bool, True where there is a patch; None when there is one everywhere.
        position_ids: [N, L], entries of the table of positions; those of padding are ignored.
        """
        x = self.embeddings.patch_embedding(pixel_values).flatten(2).transpose(1, 2)  # [N, L, C]
        x = x + self.embeddings.position_embedding(position_ids)
        mask = key_mask(patch_attention_mask)  # [N, 1, 1, L]
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
        """[N, L, C] for x [N, L, C]."""
        q, k, v = self.attn["qkv"](self.norm1(x)).chunk(3, -1)  # [N, L, C] each
        x = x + self.attn["proj"](attend(q, k, v, self.heads))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))  # the exact GELU; 2.6 has the tanh one


class SigLIP(nn.Module):
    """The vision tower of 2.0, under timm's names (vit_so400m_patch14_siglip_384 without its pooling)."""

    SIDE = 27  # patches, of the square table of positions

    def __init__(self, width: int, heads: int, hidden: int, depth: int, patch: int) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, self.SIDE**2, width))
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, pixel_values: Tensor, pos_embed: Tensor) -> Tensor:
        """[N, L, C] for pixel_values [N, 3, H, W] in -1..1; pos_embed: [1, L, C], the table resized to the patches."""
        x = self.patch_embed["proj"](pixel_values).flatten(2).transpose(1, 2) + pos_embed  # [N, L, C]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def positions(self, rows: int, columns: int) -> Tensor:
        """[1, rows * columns, C]: `pos_embed` resized for a picture of so many patches."""
        table = self.pos_embed.detach().float().reshape(self.SIDE, self.SIDE, -1).numpy()  # [27, 27, C]
        return torch.from_numpy(resized_positions(table, rows, columns)).flatten(0, 1)[None].to(self.pos_embed)


class Resampler(nn.Module):
    """Maps the tower's features to a fixed number of embeddings: learnt queries attend to the features once.

    In 2.0 (`table`) the queries have positions, too, on a square grid.
    """

    def __init__(self, queries: int, width: int, inputs: int, table: bool) -> None:
        super().__init__()
        self.width = width
        self.heads = width // 128
        if table:
            side = math.isqrt(queries)
            self.pos_embed = nn.Parameter(grid_positions(side, side, width).clone(), requires_grad=False)
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
        x = self.ln_kv(self.kv_proj(image_feature))  # [N, L, D]
        query = self.ln_q(self.query)  # [queries, D]
        if hasattr(self, "pos_embed"):
            query = query + self.pos_embed
        weight_q, weight_k, weight_v = self.attn.in_proj_weight.chunk(3)  # [D, D] each
        bias_q, bias_k, bias_v = self.attn.in_proj_bias.chunk(3)  # [D] each
        q = F.linear(query[None].expand(x.shape[0], -1, -1), weight_q, bias_q)  # [N, queries, D]
        k = F.linear(x + pos_embed.transpose(0, 1), weight_k, bias_k)  # [N, L, D]
        v = F.linear(x, weight_v, bias_v)  # [N, L, D]
        mask = None if key_padding_mask is None else key_mask(~key_padding_mask)  # [N, 1, 1, L]
        return self.ln_post(self.attn.out_proj(attend(q, k, v, self.heads, mask))) @ self.proj


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Multi-head attention, [N, Q, D] for q [N, Q, D] and k, v [N, L, D]; mask: [N, 1, 1, L] bool or None."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))  # [N, heads, Q or L, D / heads]
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


class MiniCPMV(nn.Module):
    """Vision tower `vpm`, `resampler` and language model `llm`, of the shape that a checkpoint's config.json gives.

    config: its content; "version" is 2.6, or 2.0, which released files omit. Weights are random until loaded. 2.0's
    language model is a plain Llama with the checkpoint's weights times `scale`. Raises ValueError for other versions.
    """

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.config = config
        self.version = float(config.get("version", 2.0))
        if self.version not in (2.0, 2.6):
            raise ValueError(f"config.json says version {self.version}; only MiniCPM-V 2.0 and 2.6 are known here.")
        vision = SO400M | config.get("vision_config", {})
        depth = vision["num_hidden_layers"] - config.get("drop_vision_last_layer", True)
        self.dropped = depth if depth < vision["num_hidden_layers"] else None  # number of the layer that is left out
        if self.version == 2.6:
            known = {"image_size": 980} | vision | {"num_hidden_layers": depth}
            self.vpm = NaViT(_configuration(Idefics2VisionConfig, known))
            self.llm = Qwen2ForCausalLM(_configuration(Qwen2Config, config))
        else:
            sizes = (vision[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size"))
            self.vpm = SigLIP(*sizes, depth, vision["patch_size"])
            self.llm = LlamaForCausalLM(_configuration(LlamaConfig, config | {"tie_word_embeddings": False}))
        with torch.device("cpu"):  # frequencies are computed: they are needed even on the meta device
            self.llm.model.rotary_emb = type(self.llm.model.rotary_emb)(self.llm.config)
        width = config["hidden_size"]
        self.resampler = Resampler(config.get("query_num", 64), width, vision["hidden_size"], self.version == 2.0)

    def encode_images(
        self, pixel_values: Tensor, patch_attention_mask: Tensor, position_ids: Tensor, sizes: Tensor
    ) -> Tensor:
        """[N, queries, D]: the embeddings of N slices for 2.6's language model; arguments: those of `slicing.Batch`."""
        mask = None if patch_attention_mask.all() else patch_attention_mask
        return self.resample(self.vpm(pixel_values, mask, position_ids), mask, sizes)

    def resample(self, features: Tensor, mask: Tensor | None, sizes: Tensor) -> Tensor:
        """[N, queries, D] for the tower's features [N, L, C] of N slices.

        mask: [N, L] bool, True where there is a patch; None when there is one everywhere. sizes: [N, 2], rows and
        columns of patches.
        """
        places = [grid_positions(rows, columns, self.resampler.width) for rows, columns in sizes.tolist()]
        positions = nn.utils.rnn.pad_sequence(places).to(features)  # [L, N, D]
        return self.resampler(features, positions, None if mask is None else ~mask)

    def encode_equal(self, pixel_values: Tensor) -> Tensor:
        """[N, queries, D]: the embeddings of N slices of one size, [N, 3, H, W] in -1..1, for 2.0's language model."""
        rows, columns = (side // self.vpm.patch_embed["proj"].kernel_size[0] for side in pixel_values.shape[2:])
        features = self.vpm(pixel_values, self.vpm.positions(rows, columns))  # [N, L, C]
        positions = grid_positions(rows, columns, self.resampler.width)[:, None].expand(
            -1, len(features), -1
        )  # [L, N, D]
        return self.resampler(features, positions.to(features), None)


def _configuration(kind: type, config: dict):
    """A configuration of transformers, from the fields that it knows."""
    known = {field.name for field in fields(kind)} | {"rope_theta", "rope_scaling"}
    return kind(**{key: x for key, x in config.items() if key in known}, attn_implementation="sdpa")


def key_mask(mask: Tensor | None) -> Tensor | None:
    """[N, 1, 1, L]: a mask of keys [N, L] for all heads and queries."""
    return None if mask is None else mask[:, None, None]


@lru_cache(maxsize=64)
def grid_positions(rows: int, columns: int, width: int) -> Tensor:
    """[rows * columns, width]: `sincos_positions` row by row."""
    return torch.from_numpy(sincos_positions(rows, columns, width)).flatten(0, 1)
