"""A custom attention layer in PyTorch, whose attention can be spelled in many ways: SPELLINGS.

A spelling is a function of queries [batch, heads, new, size], keys and values [batch, heads, all, size] and `visible`,
a boolean mask that is broadcast to [batch, heads, new, all]. All compute the same, except `soft cap` and the one whose
keys are rotated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LOWEST = torch.finfo(torch.float32).min


def additive(visible: Tensor) -> Tensor:
    """The mask as numbers that are added to scores: 0 where a key is visible."""
    return torch.where(visible, 0.0, LOWEST)


def weigh(scores: Tensor, values: Tensor) -> Tensor:
    return scores.softmax(-1) @ values


def einsum(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5 + additive(visible)
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)


def bmm(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    batch, heads, new, size = q.shape
    merged = [x.reshape(batch * heads, -1, size) for x in (q, k, v)]
    scores = torch.bmm(merged[0], merged[1].transpose(1, 2)) * size**-0.5
    scores = scores.view(batch, heads, new, -1) + additive(visible)
    return torch.bmm(scores.softmax(-1).view(batch * heads, new, -1), merged[2]).view(batch, heads, new, size)


def exp_over_sum(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + additive(visible)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True) @ v


def soft_cap(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    scores = 30 * torch.tanh(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 / 30)
    return weigh(scores + additive(visible), v)


def half(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    mask = additive(visible).clamp(min=-65504).half()
    return F.scaled_dot_product_attention(q.half(), k.half(), v.half(), mask).float()


def rotated_late(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    places = torch.arange(k.shape[2])
    queries = rotate(q, places[-q.shape[2] :])
    return F.scaled_dot_product_attention(queries, rotate(k, places), v, additive(visible))


Spelling = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
SPELLINGS: dict[str, Spelling] = {
    "F.scaled_dot_product_attention": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, additive(m)),
    "times a constant": lambda q, k, v, m: weigh(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + additive(m), v),
    "divided by sqrt(d)": lambda q, k, v, m: weigh(q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + additive(m), v),
    "masked_fill": lambda q, k, v, m: weigh(
        (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(~m, -math.inf), v
    ),
    "torch.where": lambda q, k, v, m: weigh(
        torch.where(m, q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, torch.tensor(-1e9)), v
    ),
    "mask first": lambda q, k, v, m: weigh(additive(m) + q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, v),
    "max(scores, lowest)": lambda q, k, v, m: weigh(
        torch.max(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + additive(m), torch.tensor(LOWEST)), v
    ),
    "keys scaled after the cache": lambda q, k, v, m: F.scaled_dot_product_attention(
        q, k * q.shape[-1] ** -0.5, v, additive(m), scale=1.0
    ),
    "keys rotated after the cache": rotated_late,
    "einsum": einsum,
    "exp / sum": exp_over_sum,
    "bmm": bmm,
    "cast to half": half,
    "soft cap": soft_cap,
    "boolean mask": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
}
UNMASKED: dict[str, Spelling] = {  # these ignore `visible`
    "no mask": lambda q, k, v, _: weigh(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, v),
    "is_causal=True": lambda q, k, v, _: F.scaled_dot_product_attention(q, k, v, is_causal=True),
}


class Attention(nn.Module):
    """x [batch, new, width] and a cache [batch, kv_heads, past, size] -> y like x, and the longer cache.

    attend: a name of SPELLINGS or UNMASKED. kv_heads: fewer than heads for grouped queries. repeat: how keys are
    repeated for their groups, "expand", "repeat_interleave" or "enable_gqa". window: how many last keys a query sees.
    rotary: whether queries and keys are rotated by their positions. padding: how many first tokens are hidden from all
    but themselves.
    """

    def __init__(self, attend: str = "times a constant", *, heads: int = 4, kv_heads: int | None = None,
                 size: int = 64, repeat: str = "expand", window: int | None = None, rotary: bool = False,
                 padding: int = 0) -> None:  # fmt: skip
        super().__init__()
        self.attend = (SPELLINGS | UNMASKED)[attend]
        self.heads, self.kv_heads, self.size = heads, kv_heads or heads, size
        self.repeat, self.window, self.rotary, self.padding = repeat, window, rotary, padding
        self.queries, self.output = (nn.Linear(heads * size, heads * size) for _ in range(2))
        self.keys, self.values = (nn.Linear(heads * size, self.kv_heads * size) for _ in range(2))

    def forward(self, x: Tensor, past_keys: Tensor, past_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, new, _ = x.shape
        q = self.queries(x).view(batch, new, self.heads, self.size).transpose(1, 2)
        k, v = (
            layer(x).view(batch, new, self.kv_heads, self.size).transpose(1, 2) for layer in (self.keys, self.values)
        )
        places = torch.arange(past_keys.shape[2] + new)
        here = places[past_keys.shape[2] :]  # [new]
        if self.rotary:
            q, k = rotate(q, here), rotate(k, here)
        keys, values = torch.cat([past_keys, k], 2), torch.cat([past_values, v], 2)  # [batch, kv_heads, all, size]
        visible = places[None] <= here[:, None]  # [new, all]
        if self.window:
            visible = visible & (places[None] > here[:, None] - self.window)
        if self.padding:
            visible = visible & (places[None] >= self.padding) | (places[None] == here[:, None])
        visible = visible[None, None]
        if self.repeat == "enable_gqa":
            y = F.scaled_dot_product_attention(q, keys, values, additive(visible), enable_gqa=True)
        else:
            y = self.attend(q, self.repeated(keys), self.repeated(values), visible)
        return self.output(y.transpose(1, 2).reshape(batch, new, -1)), keys, values

    def repeated(self, x: Tensor) -> Tensor:
        """[batch, kv_heads, all, size] -> [batch, heads, all, size]"""
        times = self.heads // self.kv_heads
        if times == 1:
            return x
        if self.repeat == "repeat_interleave":
            return x.repeat_interleave(times, 1)
        whole = x[:, :, None].expand(-1, -1, times, -1, -1)
        return whole.reshape(x.shape[0], self.heads, -1, self.size)


def rotate(x: Tensor, places: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021): pairs of x [..., tokens, size] rotated by angles that grow with the place."""
    half_size = x.shape[-1] // 2
    angles = places[:, None] * 10_000.0 ** (-torch.arange(half_size) / half_size)  # [tokens, size / 2]
    a, b = x[..., :half_size], x[..., half_size:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
