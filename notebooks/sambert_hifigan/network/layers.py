"""What SAMBERT's networks are made of. B: batch, T: places; masks [B, T] are True where there is no padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-6  # of all layer norms; PyTorch's own default is ten times that


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Attention of several heads, [B, Q, D] for q [B, Q, D] and k, v [B, K, D]; mask: bool, True where one is read."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    if mask is None:
        # On a CPU without AVX-512, OpenVINO (2026.4) fuses the usual form, and where the first call has one key, later
        # ones are wrong from eight on. A cache begins with one. Keys first is the same, and not fused.
        weights = (k @ q.transpose(2, 3) * q.shape[3] ** -0.5).softmax(2)
        return (v.transpose(2, 3) @ weights).permute(0, 3, 1, 2).flatten(2)
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


def rows(x: Tensor, index: Tensor) -> Tensor:
    """[B, F, C]: of every x [B, T, C] the rows that the index [B, F] names."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


class FeedForward(nn.Module):
    """Layer norm, convolution with ReLU, convolution of one place, and the input added."""

    def __init__(self, width: int, hidden: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(width, eps=EPS)
        self.w_1 = nn.Conv1d(width, hidden, kernel, padding=(kernel - 1) // 2)
        self.w_2 = nn.Conv1d(hidden, width, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.layer_norm(x)
        if mask is not None:
            y = y * mask[..., None]  # what is padding must not reach its neighbours
        return x + self.dropout(self.w_2(F.relu(self.w_1(y.transpose(1, 2)))).transpose(1, 2))


class SelfAttention(nn.Module):
    """Layer norm and attention; the input is added where the widths agree."""

    def __init__(self, inputs: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.residual = heads, inputs == width
        self.layer_norm = nn.LayerNorm(inputs, eps=EPS)
        self.w_qkv = nn.Linear(inputs, 3 * width)
        self.fc = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        keys = None if mask is None else mask[:, None, None]
        y = self.dropout(self.fc(attend(*self.w_qkv(self.layer_norm(x)).chunk(3, -1), self.heads, keys)))
        return x + y if self.residual else y


class PositionEncoder(nn.Module):
    """Adds sines (first half of the channels) and cosines (second half) of the place, counted from 1."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.position_enc = nn.Parameter(self.table(length, width), requires_grad=False)

    @staticmethod
    def table(length: int, width: int) -> Tensor:
        """[1, length, width]."""
        speeds = 10000.0 ** -(torch.arange(width // 2, dtype=torch.float64) / (width // 2 - 1))
        angles = torch.arange(1, length + 1, dtype=torch.float64)[:, None] * speeds
        return torch.cat([angles.sin(), angles.cos()], 1)[None].float()

    def grow(self, length: int) -> None:
        """Have at least so many places. What is traced has as many as there were then."""
        if length > self.position_enc.shape[1]:
            self.position_enc.data = self.table(length, self.position_enc.shape[2]).to(self.position_enc)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.position_enc[:, : x.shape[1]]


class DurationPositions(nn.Module):
    """[B, F, 32] for places [B, F] within phones, from 1 (0: padding): sines in even channels, cosines in odd ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        scales = 10000.0 ** (torch.arange(width, dtype=torch.float64).div(2, rounding_mode="floor") * 2 / width)
        self.inv_timescales = nn.Parameter(scales.float(), requires_grad=False)  # divides, in spite of its name
        self.register_buffer("even", torch.arange(width) % 2 == 0, persistent=False)

    def forward(self, place: Tensor) -> Tensor:
        angles = place.float()[..., None] / self.inv_timescales
        return torch.where(self.even, angles.sin(), angles.cos())


class Prenet(nn.Module):
    """Linear layers with ReLU and dropout, and with `outputs` a linear one behind them."""

    def __init__(self, inputs: int, units: list[int], outputs: int | None = None) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size in units:
            layers += [nn.Linear(inputs, size), nn.ReLU(), nn.Dropout(0.5)]
            inputs = size
        self.fcs = nn.Sequential(*layers, *([nn.Linear(inputs, outputs)] if outputs else []))

    def forward(self, x: Tensor) -> Tensor:
        return self.fcs(x)


class Projection(nn.Module):
    """Two convolutions of one place, ReLU between them; the second has no bias."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.w_1 = nn.Conv1d(inputs, hidden, 1)
        self.w_2 = nn.Conv1d(hidden, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(F.relu(self.w_1(x)))


class Memory(nn.Module):
    """A sum over neighbouring places, weighted for each channel, added to the input; `shift` looks further back."""

    def __init__(self, width: int, kernel: int, shift: int) -> None:
        super().__init__()
        self.padding = round((kernel - 1) / 2) + shift, (kernel - 1) // 2 - shift
        self.conv_dw = nn.Conv1d(width, width, kernel, groups=width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv_dw(F.pad(x, self.padding))


class FSMN(nn.Module):
    """A feedforward sequential memory network: [B, T, inputs] to [B, T, width]."""

    def __init__(self, inputs: int, hidden: int, width: int, layers: int, kernel: int, shift: int, dropout: float):
        super().__init__()
        widths = [inputs] + [width] * layers
        self.ffn_lst = nn.ModuleList(Projection(widths[i], hidden, width) for i in range(layers))
        self.memory_block_lst = nn.ModuleList(Memory(width, kernel, shift) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x.transpose(1, 2)
        for project, memory in zip(self.ffn_lst, self.memory_block_lst, strict=True):
            y = project(x)
            if mask is not None:
                y = y * mask[:, None]  # what is padding must not be remembered
            y = self.dropout(memory(y))
            x = x + y if project.w_1.in_channels == project.w_2.out_channels else y
        return x.transpose(1, 2)


class Part(nn.Module):
    """A method of a network as a module of its own, so that it can be traced."""

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__()
        self.network, self.method = network, method

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        return getattr(self.network, self.method)(*inputs)
