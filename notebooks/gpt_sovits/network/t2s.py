"""The first stage of GPT-SoVITS in PyTorch, Text2SemanticDecoder, with the key names of the released checkpoints.

A Transformer decoder writes the semantic tokens of a sentence, 25 in a second, after its phones and the tokens of a
reference (RVC-Boss, GPT-SoVITS, 2024; layers as in Vaswani et al., "Attention Is All You Need", 2017, normalised after
each branch). B: batch, X: phones, Y: tokens, T: rows (phones, then tokens), P: rows in the cache, D: width, H: heads.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

POSITIONS = 4000  # rows of the table of positions: neither phones nor tokens can be more
Cache = list[tuple[Tensor, Tensor]]  # keys and values of every layer, [B, H, P, D / H]


class Embedding(nn.Module):
    """Embeddings of symbols, under the checkpoint's name."""

    def __init__(self, symbols: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(symbols, width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.word_embeddings(ids)


class Positions(nn.Module):
    """Sines and cosines of positions, scaled by what was learnt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1))
        self.register_buffer("table", table(width), persistent=False)

    def forward(self, places: Tensor) -> Tensor:
        """[B, L, D] for places [B, L] int64 below `POSITIONS`."""
        return self.alpha * F.embedding(places, self.table)


class Layer(nn.Module):
    """Attention and two linear layers, each added to its input and normalised."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.self_attn = nn.MultiheadAttention(width, heads)  # holds the weights
        self.linear1, self.linear2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, D] and the longer cache, for x [B, T, D], mask [B or 1, 1, T, P + T], True or 0 where a row sees, and
        the cached keys and values [B, H, P, D / H]."""
        rows = F.linear(x, self.self_attn.in_proj_weight, self.self_attn.in_proj_bias)
        query, *new = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in rows.chunk(3, -1))
        keys, values = torch.cat([keys, new[0]], 2), torch.cat([values, new[1]], 2)
        seen = F.scaled_dot_product_attention(query, keys, values, mask).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.self_attn.out_proj(seen))
        return self.norm2(x + self.linear2(F.relu(self.linear1(x)))), keys, values


class Text2SemanticDecoder(nn.Module):
    """The decoder that a checkpoint's config describes. Weights are random until loaded.

    config: under "model" it has "hidden_dim" (D), "head", "n_layer", "linear_units", "phoneme_vocab_size", "vocab_size"
    (tokens and the one that ends, "EOS"), and "bert_dim" where that is not 1024.
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
        places = torch.arange(phones.shape[1])[None]
        return self.ar_text_embedding(phones) + self.bert_proj(bert.transpose(1, 2)) + self.ar_text_position(places)

    def embed_audio(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """[B, Y, D] for tokens [B, Y] int64; position_ids: [B, Y] int64, the first token of the reference has 0."""
        return self.ar_audio_embedding(tokens) + self.ar_audio_position(position_ids)

    def run(self, x: Tensor, mask: Tensor | None, cache: Cache) -> tuple[Tensor, Cache]:
        """Hidden states [B, T, D] of the embeddings x [B, T, D] that follow the cache, and the longer cache."""
        longer = []
        for layer, (keys, values) in zip(self.h["layers"], cache, strict=True):
            x, keys, values = layer(x, mask, keys, values)
            longer.append((keys, values))
        return x, longer

    def prefill(self, phones: Tensor, bert: Tensor, prompts: Tensor) -> tuple[Tensor, Cache]:
        """Logits [B, tokens] of the first token, and the cache, after the phones and the reference's tokens [B, Y]."""
        places = torch.arange(prompts.shape[1])[None]
        x = torch.cat([self.embed_text(phones, bert), self.embed_audio(prompts, places)], 1)
        x, cache = self.run(x, visible(x.shape[1], x.shape[1], phones.shape[1]), self.empty(len(phones)))
        return self.ar_predict_layer(x[:, -1]), cache

    def step(self, tokens: Tensor, position: int, cache: Cache) -> tuple[Tensor, Cache]:
        """Logits [B, tokens] of what follows the tokens [B, 1], and the longer cache; position: see `embed_audio`."""
        x, cache = self.run(self.embed_audio(tokens, torch.full_like(tokens, position)), None, cache)
        return self.ar_predict_layer(x[:, -1]), cache

    def empty(self, batch: int) -> Cache:
        """A cache without rows."""
        weight = self.ar_predict_layer.weight
        rows = weight.new_zeros(batch, self.heads, 0, weight.shape[1] // self.heads)
        return [(rows, rows)] * len(self.h["layers"])


def visible(rows: int | Tensor, total: int | Tensor, text: int | Tensor) -> Tensor:
    """Which of `total` rows the last `rows` of them see, [1, 1, rows, total] bool.

    text: the rows that are phones, which come first and see one another; tokens see all phones and what was before.
    """
    places = torch.arange(total)
    return ((places <= places[total - rows :, None]) | (places < text))[None, None]


@lru_cache(maxsize=4)
def table(width: int) -> Tensor:
    """[POSITIONS, width]: sines in the even columns, cosines of the same angles in the odd ones; on the CPU always."""
    frequencies = torch.exp(torch.arange(0, width, 2, device="cpu") * (-math.log(10000) / width))
    angles = torch.arange(POSITIONS, device="cpu")[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
