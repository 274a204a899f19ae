"""Networks in PyTorch: small ones that isolate one effect, and an encoder and a vocoder as speech synthesis has them.

All take tensors with a length n that changes from call to call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS = 256, 4


def chain(x: torch.Tensor) -> torch.Tensor:
    """Six element-wise operations."""
    return (x * 0.5 + 1).sigmoid() * x.tanh() - x.relu()


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax, written by hand."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    """Layer normalisation, written by hand."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    """Normalisation by the root mean square, written by hand, with the gate that often follows it."""
    return F.silu(x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()) * x


def attention(x: torch.Tensor) -> torch.Tensor:
    """Attention without F.scaled_dot_product_attention; x [batch, n, 3 * WIDTH] holds queries, keys and values."""
    q, k, v = (split_heads(part) for part in x.chunk(3, -1))  # [batch, HEADS, n, 64]
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5  # [batch, HEADS, n, n]
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def split_heads(x: torch.Tensor) -> torch.Tensor:
    """[batch, n, WIDTH] -> [batch, HEADS, n, WIDTH / HEADS]"""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Pointwise(nn.Module):
    """A function as a network."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Convolution(nn.Module):
    """A convolution along the length with an activation and a residual; x [batch, n, WIDTH]."""

    def __init__(self, kernel: int = 3) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, kernel, padding=kernel // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.convolution(x.transpose(1, 2))).transpose(1, 2) + x


SMALL: dict[str, tuple[Callable[[], nn.Module], int]] = {  # name -> network, width of x
    "element-wise chain": (lambda: Pointwise(chain), WIDTH),
    "softmax by hand": (lambda: Pointwise(softmax), WIDTH),
    "layer normalisation by hand": (lambda: Pointwise(layer_norm), WIDTH),
    "RMS normalisation and gate": (lambda: Pointwise(rms_norm), WIDTH),
    "attention without SDPA": (lambda: Pointwise(attention), 3 * WIDTH),
    "convolution and SiLU": (Convolution, WIDTH),
}


# --- As in speech synthesis ---------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention, then two convolutions, each with a residual and a normalisation."""

    def __init__(self, kernel: int = 9, inner: int = 512) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.first = nn.Conv1d(WIDTH, inner, kernel, padding=kernel // 2)
        self.second = nn.Conv1d(inner, WIDTH, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """x [batch, n, WIDTH], mask [batch, n]: 1 for what is given, 0 for padding."""
        q, k, v = (split_heads(part) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + (mask[:, None, None] - 1) * 1e4  # hides padded keys
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.out(attended))
        visible = x * mask[:, :, None]  # a convolution must find zeros after the end, as without padding
        convolved = self.second(self.first(visible.transpose(1, 2)).relu()).transpose(1, 2)
        return self.norms[1](x + convolved)


class Encoder(nn.Module):
    """The kind of encoder that reads the text in speech synthesis: blocks of attention and convolutions."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """x [batch, n, WIDTH], mask [batch, n] -> [batch, n, WIDTH]"""
        for block in self.blocks:
            x = block(x, mask)
        return x


class Vocoder(nn.Module):
    """The kind of network that makes sound in speech synthesis: 64 samples for each of n frames."""

    def __init__(self, channels: int = 128, kernels: tuple[int, ...] = (3, 7, 11), strides: tuple[int, ...] = (8, 8)):
        super().__init__()
        self.before = nn.Conv1d(WIDTH, channels, 7, padding=3)
        self.upward, self.stages = nn.ModuleList(), nn.ModuleList()
        for i, stride in enumerate(strides, 1):
            wide = channels >> i
            self.upward.append(nn.ConvTranspose1d(2 * wide, wide, 2 * stride, stride, stride // 2))
            self.stages.append(
                nn.ModuleList(
                    nn.Conv1d(wide, wide, kernel, dilation=dilation, padding=kernel // 2 * dilation)
                    for kernel in kernels
                    for dilation in (1, 3, 5)
                )
            )
        self.after = nn.Conv1d(wide, 1, 7, padding=3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """x [batch, n, WIDTH], mask [batch, n] -> samples [batch, 64 * n]"""
        mask = mask[:, None]  # [batch, 1, n]: every convolution finds zeros after the end, as without padding
        x = self.before(x.transpose(1, 2) * mask)
        for upward, convolutions in zip(self.upward, self.stages, strict=True):
            x = upward(F.leaky_relu(x, 0.1) * mask)
            mask = F.interpolate(mask, scale_factor=float(upward.stride[0]))
            for convolution in convolutions:
                x = x + convolution(F.leaky_relu(x, 0.1) * mask)
        return self.after(F.leaky_relu(x, 0.1) * mask).tanh()[:, 0]


def encoder() -> Encoder:
    """An encoder with random weights."""
    torch.manual_seed(0)
    return Encoder().eval()


def vocoder() -> Vocoder:
    """A vocoder with random weights."""
    torch.manual_seed(0)
    return Vocoder().eval()


def small(name: str) -> nn.Module:
    """One of SMALL, with random weights."""
    torch.manual_seed(0)
    return SMALL[name][0]().eval()
