"""SAMBERT's decoder of PNCA blocks, which generates one group of mel frames per step.

Each block attends to a band of groups that were generated before, and to a band of the memory that begins at the group
of the step.

B: batch, N: groups of r frames, M: mel channels, C: width of the memory, D: width of the decoder, L: blocks of the
decoder, P: groups in the cache, K: groups of the memory that a step attends to.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebooks.sambert_hifigan.network.layers import EPS, FeedForward, Prenet, attend


class PNCAAttention(nn.Module):
    """Attention of the same queries to the groups generated before, and to the memory."""

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
        """x [B, N, D] plus both attentions, and the cache with N more groups.

        memory: [B, K, 2D], keys and values of the memory. cache: [B, P, 2D], keys and values of the groups before.
        x_mask [..., N, P + N] and h_mask [..., N, K]: True where a query attends to a key; None for everywhere.
        """
        q, kv = self.w_x_qkv(self.layer_norm(x)).split([self.width, 2 * self.width], -1)  # [B, N, D], [B, N, 2D]
        cache = torch.cat([cache, kv], 1)  # [B, P + N, 2D]
        k, v = cache.chunk(2, -1)  # [B, P + N, D] each
        before = self.fc_x(attend(q, k, v, self.heads, x_mask))  # [B, N, D]
        k, v = memory.chunk(2, -1)  # [B, K, D] each
        ahead = self.fc_h(attend(q, k, v, self.heads, h_mask))  # [B, N, D]
        return x + self.dropout(before + ahead), cache


class MelDecoder(nn.Module):
    """The decoder of PNCA blocks."""

    def __init__(self, params: dict) -> None:
        super().__init__()
        mels, r, width = params["num_mels"], params["outputs_per_step"], params["decoder_num_units"]
        memory = params["encoder_projection_units"] * r + params["speaker_units"] + params["emotion_units"]
        heads, dropout = params["decoder_num_heads"], params["decoder_dropout"]
        self.mels, self.r = mels, r
        self.width, self.scale = width, math.sqrt(width)
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
        """Keys and values [L, B, N, 2D] of the memory [B, N, C] in every block."""
        return torch.stack([block["pnca_attn"].w_h_kv(memory) for block in self.pnca])

    def start(self, batch: int) -> Tensor:
        """The cache before the first group, [L, B, 0, 2D]."""
        return self.dec_out_proj.weight.new_zeros(len(self.pnca), batch, 0, 2 * self.width)

    def forward(
        self, previous: Tensor, memory: Tensor, ahead: Tensor, cache: Tensor, band: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One step: the frames of the next group [B, 1, r * M], and the cache for the step after it.

        previous: [B, 1, M], the last frame of the group before, 0 before the first. memory: [B, 1, C] of this group.
        ahead: [L, B, K, 2D], `keys_and_values` of this group and of up to `band` groups after it. cache: [L, B, P, 2D]
        of the step before, or `start`; it holds up to `band` groups. band: int64, no dimensions.
        """
        frames, cache = self.groups(previous, memory, ahead, cache)  # [B, 1, r * M], [L, B, P + 1, 2D]
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
        """N groups at once, [B, N, r * M], and the cache with N more groups. Masks: see `PNCAAttention`."""
        x = torch.cat([memory, self.prenet(previous)], -1)  # [B, N, C + D]
        x = self.dec_in_proj(x) * self.scale  # [B, N, D]
        caches = []
        for i, block in enumerate(self.pnca):
            x, block_cache = block["pnca_attn"](x, ahead[i], cache[i], x_mask, h_mask)  # [B, N, D], [B, P + N, 2D]
            x = block["pos_ffn"](x)  # [B, N, D]
            caches.append(block_cache)
        return self.dec_out_proj(self.ln(x)), torch.stack(caches)  # [B, N, r * M], [L, B, P + N, 2D]

    def infer(self, memory: Tensor, band: int) -> Tensor:
        """Frames [B, N * r, M] for the memory [B, N, C], generated one group at a time."""
        batch, count = memory.shape[:2]
        ahead, cache = self.keys_and_values(memory), self.start(batch)  # [L, B, N, 2D], [L, B, 0, 2D]
        groups = [memory.new_zeros(batch, 1, self.r * self.mels)]
        for i in range(count):
            previous = groups[-1][..., -self.mels :]  # [B, 1, M], the last frame of the group before
            window = ahead[:, :, i : i + band + 1]  # [L, B, K, 2D]
            frames, cache = self(previous, memory[:, i : i + 1], window, cache, torch.tensor(band))
            groups.append(frames)
        return self.split_groups(torch.cat(groups[1:], 1))

    def teacher_forced(self, memory: Tensor, target: Tensor, band: int, mask: Tensor | None = None) -> Tensor:
        """Frames [B, N * r, M], generated from the true frames `target` [B, N * r, M] of the groups before.

        mask: [B, N], True where there is a group; None for everywhere.
        """
        batch, count = memory.shape[:2]
        previous = target[:, self.r - 1 :: self.r]  # [B, N, M], the last frame of every group
        previous = F.pad(previous[:, :-1], (0, 0, 1, 0))  # [B, N, M], that of the group before
        places = torch.arange(count, device=memory.device)
        distance = places - places[:, None]  # [N, N], of a key from its query
        x_mask = (distance <= 0) & (distance >= -band)
        h_mask = (distance >= 0) & (distance <= band)
        if mask is not None:  # padding attends to itself, so that no softmax is empty
            h_mask = h_mask & (mask[:, None, None] | (distance == 0))  # [B, 1, N, N]
        ahead, cache = self.keys_and_values(memory), self.start(batch)
        frames, _ = self.groups(previous, memory, ahead, cache, x_mask, h_mask)
        return self.split_groups(frames)

    def split_groups(self, groups: Tensor) -> Tensor:
        """Frames [B, N * r, M] of groups [B, N, r * M]."""
        return groups.unflatten(-1, (self.r, self.mels)).flatten(1, 2)
