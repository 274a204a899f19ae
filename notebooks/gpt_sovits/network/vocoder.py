"""The vocoder inside SynthesizerTrn: HiFi-GAN (Kong et al., NeurIPS 2020), conditioned on a style.

Latents of 50 frames per second become sound at 32 kHz. B: batch, C: channels of the latents, T: frames, G: channels of
the style, S: samples (T times `hop`).
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

NEGATIVE_SLOPE = 0.1  # of the leaky ReLUs but the last


class ResBlock(nn.Module):
    """Pairs of convolutions, the first of each dilated, with leaky ReLUs before them and the input added."""

    def __init__(self, channels: int, kernel: int, dilations: list[int]) -> None:
        super().__init__()

        def convolution(dilation: int) -> nn.Conv1d:
            return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding="same")

        self.convs1 = nn.ModuleList(map(convolution, dilations))
        self.convs2 = nn.ModuleList(convolution(1) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.convs1, self.convs2, strict=True):
            y = dilated(F.leaky_relu(x, NEGATIVE_SLOPE))  # [B, channels, T], as x
            x = x + plain(F.leaky_relu(y, NEGATIVE_SLOPE))
        return x


class Generator(nn.Module):
    """The vocoder of `SynthesizerTrn`, its weight norm folded.

    config: "inter_channels" (C), "gin_channels" (G), "upsample_rates", "upsample_kernel_sizes",
    "upsample_initial_channel", "resblock_kernel_sizes" and "resblock_dilation_sizes".
    """

    def __init__(self, config: dict) -> None:
        super().__init__()
        rates, kernels = config["upsample_rates"], config["upsample_kernel_sizes"]
        widths = [config["upsample_initial_channel"] >> i for i in range(len(rates) + 1)]
        blocks = list(zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True))
        self.hop, self.blocks = math.prod(rates), len(blocks)
        self.conv_pre = nn.Conv1d(config["inter_channels"], widths[0], 7, padding=3)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(widths[i], widths[i + 1], kernel, rate, padding=(kernel - rate) // 2)
            for i, (rate, kernel) in enumerate(zip(rates, kernels, strict=True))
        )
        self.resblocks = nn.ModuleList(ResBlock(width, *block) for width in widths[1:] for block in blocks)
        self.conv_post = nn.Conv1d(widths[-1], 1, 7, padding=3, bias=False)
        self.cond = nn.Conv1d(config["gin_channels"], widths[0], 1)

    def forward(self, z: Tensor, ge: Tensor) -> Tensor:
        """Sound [B, 1, S] in -1..1 for the latents z [B, C, T] and the style embedding ge [B, G, 1]."""
        x = self.conv_pre(z) + self.cond(ge)  # [B, initial channels, T]
        for i, upsample in enumerate(self.ups):
            x = upsample(F.leaky_relu(x, NEGATIVE_SLOPE))  # half the channels, `upsample_rates[i]` times as many frames
            blocks = self.resblocks[i * self.blocks : (i + 1) * self.blocks]
            x = sum(block(x) for block in blocks) / self.blocks
        return self.conv_post(F.leaky_relu(x)).tanh()  # the last slope is PyTorch's own, 0.01
