"""The first stage of GPT-SoVITS in PyTorch, Text2SemanticDecoder, with the key names of the released checkpoints.

A Transformer decoder writes the semantic tokens of a sentence, 25 per second, after its phonemes and the tokens of a
reference (RVC-Boss, GPT-SoVITS, 2024; layers as in Vaswani et al., "Attention Is All You Need", 2017, normalised after
each branch). B: batch, X: phonemes, Y: tokens, T: rows (phonemes, then tokens), P: rows in the cache, D: width, H:
heads, V: size of the vocabulary, the end token included.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MAX_POSITIONS = 4000  # rows of the table of positions: neither phonemes nor tokens can be more
Cache = list[tuple[Tensor, Tensor]]  # keys and values of every layer, [B, H, P, D / H]


class Embedding(nn.Module):
    """Embeddings of symbols, under the checkpoint's name."""

    def __init__(self, symbols: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(symbols, width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.word_embeddings(ids)


class Positions(nn.Module):
    """Sines and cosines of positions, scaled by a learned factor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1))
        self.register_buffer("table", table(width), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """[B, L, D] for positions [B, L] int64 below `MAX_POSITIONS`."""
        return self.alpha * F.embedding(positions, self.table)


class Layer(nn.Module):
    """Attention and two linear layers, each added to its input and normalised."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.self_attn = nn.MultiheadAttention(width, heads)  # holds the weights
        self.linear1, self.linear2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, D] and the longer cache, for x [B, T, D] and the cached keys and values [B, H, P, D / H].

        mask: [B or 1, 1, T, P + T], True (or 0, where it is added) where a row attends to another.
        """
        qkv = F.linear(x, self.self_attn.in_proj_weight, self.self_attn.in_proj_bias)  # [B, T, 3 D]
        query, new_keys, new_values = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv.chunk(3, -1)
        )  # [B, H, T, D / H] each
        keys = torch.cat([keys, new_keys], 2)  # [B, H, P + T, D / H]
        values = torch.cat([values, new_values], 2)  # [B, H, P + T, D / H]
        context = F.scaled_dot_product_attention(query, keys, values, mask)  # [B, H, T, D / H]
        x = self.norm1(x + self.self_attn.out_proj(context.transpose(1, 2).flatten(2)))  # [B, T, D]
        return self.norm2(x + self.linear2(F.relu(self.linear1(x)))), keys, values


class Text2SemanticDecoder(nn.Module):
    """The decoder that a checkpoint's config describes. Weights are random until loaded.

    config: under "model" it has "hidden_dim" (D), "head", "n_layer", "linear_units", "phoneme_vocab_size", "vocab_size"
    (V, with the end token "EOS"), and "bert_dim" where that is not 1024.
    """

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.config, sizes = config, config["model"]
        width, self.heads, tokens = sizes["hidden_dim"], sizes["head"], sizes["vocab_size"]
        self.eos = sizes["EOS"]
        self.bert_proj = nn.Linear(sizes.get("bert_dim", 1024), width)
        self.ar_text_embedding, self.ar_text_position = Embedding(sizes["phoneme_vocab_size"], width), Positions(width)
        self.ar_audio_embedding, self.ar_audio_position = Embedding(tokens, width), Positions(width)
        layers = (Layer(width, self.heads, sizes["linear_units"]) for _ in range(sizes["n_layer"]))
        self.h = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        self.ar_predict_layer = nn.Linear(width, tokens, bias=False)

    def embed_text(self, phones: Tensor, bert: Tensor) -> Tensor:
        """[B, X, D] for phones [B, X] int64 and the features of BERT for each, [B, 1024, X]."""
        positions = torch.arange(phones.shape[1])[None]  # [1, X]
        bert = self.bert_proj(bert.transpose(1, 2))  # [B, X, D]
        return self.ar_text_embedding(phones) + bert + self.ar_text_position(positions)

    def embed_audio(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """[B, Y, D] for tokens [B, Y] int64; position_ids: [B, Y] int64, the first token of the recording has 0."""
        return self.ar_audio_embedding(tokens) + self.ar_audio_position(position_ids)

    def run(self, x: Tensor, mask: Tensor | None, cache: Cache) -> tuple[Tensor, Cache]:
        """Hidden states [B, T, D] of the embeddings x [B, T, D] that follow the cache, and the longer cache."""
        longer = []
        for layer, (keys, values) in zip(self.h["layers"], cache, strict=True):
            x, keys, values = layer(x, mask, keys, values)
            longer.append((keys, values))
        return x, longer

    def prefill(self, phones: Tensor, bert: Tensor, prompts: Tensor) -> tuple[Tensor, Cache]:
        """Logits [B, V] of the first token, and the cache, after phones and prompts, the recording's tokens [B, Y]."""
        positions = torch.arange(prompts.shape[1])[None]  # [1, Y]
        x = torch.cat([self.embed_text(phones, bert), self.embed_audio(prompts, positions)], 1)  # [B, X + Y, D]
        x, cache = self.run(x, prefix_mask(x.shape[1], x.shape[1], phones.shape[1]), self.empty_cache(len(phones)))
        return self.ar_predict_layer(x[:, -1]), cache

    def step(self, tokens: Tensor, position: int, cache: Cache) -> tuple[Tensor, Cache]:
        """Logits [B, V] of the token after tokens [B, 1], and the longer cache; position: see `embed_audio`."""
        x, cache = self.run(self.embed_audio(tokens, torch.full_like(tokens, position)), None, cache)  # [B, 1, D]
        return self.ar_predict_layer(x[:, -1]), cache

    def empty_cache(self, batch: int) -> Cache:
        """A cache without rows."""
        weight = self.ar_predict_layer.weight  # [V, D]
        rows = weight.new_zeros(batch, self.heads, 0, weight.shape[1] // self.heads)
        return [(rows, rows)] * len(self.h["layers"])


def prefix_mask(rows: int | Tensor, total: int | Tensor, text: int | Tensor) -> Tensor:
    """The attention mask [1, 1, rows, total] bool of the last `rows` of `total` rows.

    text: how many rows are phonemes. These come first and attend to one another; tokens attend to all phonemes and to
    the tokens before them.
    """
    positions = torch.arange(total)
    causal = positions <= positions[total - rows :, None]  # [rows, total]
    return (causal | (positions < text))[None, None]


@lru_cache(maxsize=4)
def table(width: int) -> Tensor:
    """[MAX_POSITIONS, width]: sines in even columns, cosines of the same angles in odd ones; always on the CPU."""
    frequencies = torch.exp(torch.arange(0, width, 2, device="cpu") * (-math.log(10000) / width))
    angles = torch.arange(MAX_POSITIONS, device="cpu")[:, None] * frequencies  # [MAX_POSITIONS, width / 2]
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
