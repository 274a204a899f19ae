"""SAMBERT's decoder of PNCA blocks: groups of mel frames, one a step.

Each block looks at a band of groups that it made before, and at a band of those that are to come. B: batch, N: groups
of r frames, M: mel channels, C: width of the memory, D: width of the decoder, L: its blocks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebooks.sambert_hifigan.network.layers import EPS, FeedForward, Prenet, attend


class PNCAAttention(nn.Module):
    """The same question asked twice, to what the block made of the groups before and to the memory."""

    def __init__(self, width: int, memory: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.layer_norm = nn.LayerNorm(width, eps=EPS)
        self.w_x_qkv = nn.Linear(width, 3 * width)
        self.fc_x = nn.Linear(width, width)
        self.w_h_kv = nn.Linear(memory, 2 * width)
        self.fc_h = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, memory: Tensor, cache: Tensor, x_mask: Tensor | None, h_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """x [B, N, D] with what was read added, and the cache grown by N.

        memory: [B, K, 2D], keys and values from `w_h_kv`; cache: [B, P, 2D], of groups before. x_mask [..., N, P + N]
        and h_mask [..., N, K]: True where a group is read; None for everywhere.
        """
        q, new = self.w_x_qkv(self.layer_norm(x)).split([self.width, 2 * self.width], -1)
        cache = torch.cat([cache, new], 1)
        before = self.fc_x(attend(q, *cache.chunk(2, -1), self.heads, x_mask))
        ahead = self.fc_h(attend(q, *memory.chunk(2, -1), self.heads, h_mask))
        return x + self.dropout(before + ahead), cache


class MelDecoder(nn.Module):
    """The decoder of PNCA blocks."""

    def __init__(self, params: dict) -> None:
        super().__init__()
        mels, r, width = params["num_mels"], params["outputs_per_step"], params["decoder_num_units"]
        memory = params["encoder_projection_units"] * r + params["speaker_units"] + params["emotion_units"]
        heads, dropout = params["decoder_num_heads"], params["decoder_dropout"]
        self.mels, self.r, self.width, self.scale = mels, r, width, math.sqrt(width)
        self.prenet = Prenet(mels, params["decoder_prenet_units"], width)
        self.dec_in_proj = nn.Linear(memory + width, width)
        blocks = []
        for _ in range(params["decoder_num_layers"]):
            attention = PNCAAttention(width, memory, heads, dropout)
            feed_forward = FeedForward(width, params["decoder_ffn_inner_dim"], 1, dropout)
            blocks.append(nn.ModuleDict({"pnca_attn": attention, "pos_ffn": feed_forward}))
        self.pnca = nn.ModuleList(blocks)
        self.ln = nn.LayerNorm(width, eps=EPS)
        self.dec_out_proj = nn.Linear(width, mels * r)

    def keys_and_values(self, memory: Tensor) -> Tensor:
        """What every block reads of the memory [B, N, C]: [L, B, N, 2D]."""
        return torch.stack([block["pnca_attn"].w_h_kv(memory) for block in self.pnca])

    def start(self, batch: int) -> Tensor:
        """The cache before the first group, [L, B, 0, 2D]."""
        return self.dec_out_proj.weight.new_zeros(len(self.pnca), batch, 0, 2 * self.width)

    def forward(
        self, previous: Tensor, memory: Tensor, ahead: Tensor, cache: Tensor, band: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One step: the next group's frames [B, 1, r * M], and the cache for the step after it.

        previous: [B, 1, M], the last frame of the group before, 0 before the first. memory: [B, 1, C], this group's.
        ahead: [L, B, K, 2D], `keys_and_values` of this group and of up to `band` that follow. cache: [L, B, P, 2D] of
        the step before, or `start`; it holds up to `band` groups. band: int64, no dimensions.
        """
        frames, cache = self.groups(previous, memory, ahead, cache)
        first = torch.clamp(cache.shape[2] - band, min=0)
        return frames, cache[:, :, first:]

    def groups(
        self,
        previous: Tensor,
        memory: Tensor,
        ahead: Tensor,
        cache: Tensor,
        x_mask: Tensor | None = None,
        h_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """N groups at once, [B, N, r * M], and the cache with theirs; the masks are those of `PNCAAttention`."""
        x = self.dec_in_proj(torch.cat([memory, self.prenet(previous)], -1)) * self.scale
        caches = []
        for i, block in enumerate(self.pnca):
            x, grown = block["pnca_attn"](x, ahead[i], cache[i], x_mask, h_mask)
            x = block["pos_ffn"](x)
            caches.append(grown)
        return self.dec_out_proj(self.ln(x)), torch.stack(caches)

    def infer(self, memory: Tensor, band: int) -> Tensor:
        """Frames [B, N * r, M] of the memory [B, N, C], group after group."""
        batch, count = memory.shape[:2]
        width, ahead, cache = torch.tensor(band), self.keys_and_values(memory), self.start(batch)
        made = [memory.new_zeros(batch, 1, self.r * self.mels)]
        for i in range(count):
            window = ahead[:, :, i : i + band + 1]
            frames, cache = self(made[-1][..., -self.mels :], memory[:, i : i + 1], window, cache, width)
            made.append(frames)
        return torch.cat(made[1:], 1).unflatten(-1, (self.r, self.mels)).flatten(1, 2)

    def teach(self, memory: Tensor, target: Tensor, band: int, mask: Tensor | None = None) -> Tensor:
        """Frames [B, N * r, M], told the true ones [B, N * r, M] of the groups before.

        mask: [B, N], True where there is a group; None when there is one everywhere.
        """
        batch, count = memory.shape[:2]
        previous = F.pad(target[:, self.r - 1 :: self.r][:, :-1], (0, 0, 1, 0))
        places = torch.arange(count, device=memory.device)
        apart = places - places[:, None]  # of a key from its query
        x_mask, h_mask = (apart <= 0) & (apart >= -band), (apart >= 0) & (apart <= band)
        if mask is not None:  # padding reads itself, so that no softmax is empty
            h_mask = h_mask & (mask[:, None, None] | (apart == 0))
        ahead, cache = self.keys_and_values(memory), self.start(batch)
        frames, _ = self.groups(previous, memory, ahead, cache, x_mask, h_mask)
        return frames.unflatten(-1, (self.r, self.mels)).flatten(1, 2)
