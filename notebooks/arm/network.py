"""A noise gate: a network without training, whose weights are a Fourier transform."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

WINDOW, HOP = 128, 64  # samples of a frame, and between the beginnings of two frames
BINS = WINDOW // 2 + 1
THRESHOLD = 0.025  # of the power of a bin; white noise of 0.05 has 0.0025 on average


class NoiseGate(nn.Module):
    """Cuts a sound into frames, sets quiet frequencies to zero, and adds the frames up again.

    choice: whether quiet frequencies are set to zero by `torch.where`, or by a product with a boolean.
    """

    def __init__(self, choice: bool = False) -> None:
        super().__init__()
        self.choice = choice
        self.register_buffer("kernel", fourier())

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """sound [batch, samples], samples a multiple of HOP -> the same without noise."""
        edge = WINDOW - HOP
        spectrum = F.conv1d(sound[:, None], self.kernel, stride=HOP, padding=edge)  # [batch, 2 * BINS, frames]
        spectrum = spectrum.unflatten(1, (2, BINS))  # [batch, 2, BINS, frames]: real and imaginary parts
        loud = spectrum.square().sum(1, keepdim=True) > THRESHOLD  # [batch, 1, BINS, frames]
        kept = torch.where(loud, spectrum, 0.0) if self.choice else spectrum * loud
        return F.conv_transpose1d(kept.flatten(1, 2), self.kernel, stride=HOP, padding=edge)[:, 0]


def fourier() -> torch.Tensor:
    """The windowed Fourier transform as a kernel [2 * BINS, 1, WINDOW]: cosines, then sines.

    A convolution with it and a transposed convolution with it give the sound back.
    """
    angles = 2 * math.pi / WINDOW * torch.arange(BINS)[:, None] * torch.arange(WINDOW)  # [BINS, WINDOW]
    twice = torch.full((BINS, 1), math.sqrt(2))  # each bin but the first and the last stands for two
    twice[[0, -1]] = 1
    scale = twice * torch.hann_window(WINDOW).sqrt() / math.sqrt(WINDOW)  # windows that overlap add up to 1
    return torch.cat([angles.cos() * scale, -angles.sin() * scale])[:, None]
