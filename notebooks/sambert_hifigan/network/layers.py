"""The layers of SAMBERT. B: batch, T: length, D: width. Masks [B, T] are True except for padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-6  # of all layer norms; the default of PyTorch is ten times larger


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Multi-head attention: [B, Q, D] for q [B, Q, D] and k, v [B, K, D].

    mask: bool [..., Q, K], True where a query attends to a key; None for everywhere.
    """
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))  # [B, heads, Q or K, D / heads]
    if mask is None:
        # On a CPU without AVX-512, OpenVINO (2026.4) fuses the usual form. If the first call has one key, as a cache
        # has, later calls with eight or more keys return wrong values. The transposed form is not fused.
        weights = (k @ q.transpose(2, 3) * q.shape[3] ** -0.5).softmax(2)  # [B, heads, K, Q]
        x = v.transpose(2, 3) @ weights  # [B, heads, D / heads, Q]
        return x.permute(0, 3, 1, 2).flatten(2)  # [B, Q, D]
    x = F.scaled_dot_product_attention(q, k, v, mask)  # [B, heads, Q, D / heads]
    return x.transpose(1, 2).flatten(2)  # [B, Q, D]


def rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x [B, T, C] by their index [B, F]: [B, F, C]."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


class FeedForward(nn.Module):
    """Layer norm, convolution, ReLU and pointwise convolution, with a residual connection."""

    def __init__(self, width: int, hidden: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(width, eps=EPS)
        self.w_1 = nn.Conv1d(width, hidden, kernel, padding=(kernel - 1) // 2)
        self.w_2 = nn.Conv1d(hidden, width, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, T, D] for x [B, T, D]."""
        y = self.layer_norm(x)  # [B, T, D]
        if mask is not None:
            y = y * mask[..., None]  # the convolution must not read padding
        y = F.relu(self.w_1(y.transpose(1, 2)))  # [B, hidden, T]
        y = self.w_2(y).transpose(1, 2)  # [B, T, D]
        return x + self.dropout(y)


class SelfAttention(nn.Module):
    """Layer norm and self-attention, with a residual connection if input and output have the same width."""

    def __init__(self, inputs: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.residual = heads, inputs == width
        self.layer_norm = nn.LayerNorm(inputs, eps=EPS)
        self.w_qkv = nn.Linear(inputs, 3 * width)
        self.fc = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, T, width] for x [B, T, inputs]."""
        q, k, v = self.w_qkv(self.layer_norm(x)).chunk(3, -1)  # [B, T, width] each
        key_mask = None if mask is None else mask[:, None, None]  # [B, 1, 1, T]
        y = self.dropout(self.fc(attend(q, k, v, self.heads, key_mask)))  # [B, T, width]
        return x + y if self.residual else y


class PositionEncoder(nn.Module):
    """Adds sines (first half of the channels) and cosines (second half) of the position, counted from 1."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.position_enc = nn.Parameter(self.table(length, width), requires_grad=False)

    @staticmethod
    def table(length: int, width: int) -> Tensor:
        """Encodings [1, length, width] of the positions 1 to length."""
        speeds = 10000.0 ** -(torch.arange(width // 2, dtype=torch.float64) / (width // 2 - 1))
        angles = torch.arange(1, length + 1, dtype=torch.float64)[:, None] * speeds  # [length, width / 2]
        return torch.cat([angles.sin(), angles.cos()], 1)[None].float()

    def grow(self, length: int) -> None:
        """Make the table as long as `length` or longer. A traced model keeps the length at the time of tracing."""
        if length > self.position_enc.shape[1]:
            self.position_enc.data = self.table(length, self.position_enc.shape[2]).to(self.position_enc)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] for x [B, T, width]."""
        return x + self.position_enc[:, : x.shape[1]]


class DurationPositions(nn.Module):
    """Encodes places within phonemes, with sines in even channels and cosines in odd ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        scales = 10000.0 ** (torch.arange(width, dtype=torch.float64).div(2, rounding_mode="floor") * 2 / width)
        self.inv_timescales = nn.Parameter(scales.float(), requires_grad=False)  # divides, in spite of its name
        self.register_buffer("even", torch.arange(width) % 2 == 0, persistent=False)

    def forward(self, place: Tensor) -> Tensor:
        """[B, F, 32] for places [B, F], counted from 1; padding has place 0."""
        angles = place.float()[..., None] / self.inv_timescales  # [B, F, 32]
        return torch.where(self.even, angles.sin(), angles.cos())


class Prenet(nn.Module):
    """Linear layers with ReLU and dropout, followed by a linear layer if `outputs` is given."""

    def __init__(self, inputs: int, units: list[int], outputs: int | None = None) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size in units:
            layers += [nn.Linear(inputs, size), nn.ReLU(), nn.Dropout(0.5)]
            inputs = size
        self.fcs = nn.Sequential(*layers, *([nn.Linear(inputs, outputs)] if outputs else []))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, outputs], or [B, T, units[-1]] without `outputs`, for x [B, T, inputs]."""
        return self.fcs(x)


class Projection(nn.Module):
    """Two pointwise convolutions with a ReLU between them; the second has no bias."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.w_1 = nn.Conv1d(inputs, hidden, 1)
        self.w_2 = nn.Conv1d(hidden, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, outputs, T] for x [B, inputs, T]."""
        return self.w_2(F.relu(self.w_1(x)))


class Memory(nn.Module):
    """The memory block of an FSMN: a depthwise convolution with a residual connection. `shift` moves it to the past."""

    def __init__(self, width: int, kernel: int, shift: int) -> None:
        super().__init__()
        self.padding = round((kernel - 1) / 2) + shift, (kernel - 1) // 2 - shift
        self.conv_dw = nn.Conv1d(width, width, kernel, groups=width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, T] for x [B, width, T]."""
        return x + self.conv_dw(F.pad(x, self.padding))


class FSMN(nn.Module):
    """A feedforward sequential memory network."""

    def __init__(self, inputs: int, hidden: int, width: int, layers: int, kernel: int, shift: int, dropout: float):
        super().__init__()
        widths = [inputs] + [width] * layers
        self.ffn_lst = nn.ModuleList(Projection(widths[i], hidden, width) for i in range(layers))
        self.memory_block_lst = nn.ModuleList(Memory(width, kernel, shift) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, T, width] for x [B, T, inputs]."""
        x = x.transpose(1, 2)  # [B, inputs, T]
        for project, memory in zip(self.ffn_lst, self.memory_block_lst, strict=True):
            y = project(x)  # [B, width, T]
            if mask is not None:
                y = y * mask[:, None]  # the memory must not read padding
            y = self.dropout(memory(y))  # [B, width, T]
            x = x + y if project.w_1.in_channels == project.w_2.out_channels else y
        return x.transpose(1, 2)  # [B, T, width]


class Part(nn.Module):
    """A method of a network as a module, so that it can be traced."""

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__()
        self.network, self.method = network, method

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        return getattr(self.network, self.method)(*inputs)
