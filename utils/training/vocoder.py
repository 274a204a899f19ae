"""Losses of a vocoder: spectra at several resolutions, and discriminators of waveforms.

Shapes: B sounds, S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from utils.training.loop import autocast

FFT_SIZES = (256, 512, 1024, 2048)  # samples
FLOOR = 1e-5  # of a bin's power: quieter bins count as silent


def spectral_error(generated: Tensor, target: Tensor) -> Tensor:
    """The difference of the magnitude spectra of sounds [B, 1, S], relative and in logarithms, over FFT_SIZES."""
    errors = []
    for size in FFT_SIZES:
        options = {"n_fft": size, "hop_length": size // 4, "window": torch.hann_window(size), "return_complex": True}
        spectra = []
        for sound in (generated, target):
            bins = torch.view_as_real(torch.stft(sound[:, 0], **options))  # [B, size / 2 + 1, frames, 2]
            spectra.append((bins.square().sum(-1) + FLOOR).sqrt())  # [B, size / 2 + 1, frames]
        ours, theirs = spectra
        errors.append((ours - theirs).abs().mean() / theirs.mean() + (ours.log() - theirs.log()).abs().mean())
    return sum(errors) / len(errors)


class PeriodDiscriminator(nn.Module):
    """A small period discriminator of HiFi-GAN: it sees every `period`-th sample, in order."""

    def __init__(self, period: int, widths: Sequence[int] = (1, 16, 32, 64, 64)) -> None:
        super().__init__()
        self.period = period
        self.convs = nn.ModuleList(nn.Conv2d(*pair, (5, 1), (3, 1), (2, 0)) for pair in pairwise(widths))
        self.last = nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0))

    def forward(self, sound: Tensor) -> list[Tensor]:
        """The features of every layer for a sound [B, 1, S]; the last are scores, 1 for a real sound."""
        x = F.pad(sound, (0, -sound.shape[2] % self.period), mode="reflect")  # [B, 1, rows * period]
        x = x.unflatten(2, (-1, self.period))  # [B, 1, rows, period]
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)  # [B, width, rows / 3, period], a third of the rows each time
            features.append(x)
        return [*features, self.last(x)]


class Discriminators(nn.ModuleList):
    """A discriminator for every period."""

    def forward(self, sound: Tensor) -> list[list[Tensor]]:
        with autocast():
            outputs = [discriminator(sound) for discriminator in self]
        return [[x.float() for x in features] for features in outputs]


def adversarial_losses(discriminators: Discriminators, generated: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The least-squares losses of the "discriminators" and of the "generator", and the distance of their "features".

    generated, target: sounds [B, 1, S]. One backward pass of their sum serves both sides: the discriminators' loss has
    the generated sound detached, the other two have the discriminators' weights detached.
    """
    # the discriminators' loss: scores of 1 for target sounds, of 0 for generated ones
    discriminators_loss = sum(
        (1 - real[-1]).square().mean() + fake[-1].square().mean()
        for real, fake in zip(discriminators(target), discriminators(generated.detach()), strict=True)
    )

    # the generator's losses: a score of 1, and the features of the target
    fixed = {name: weight.detach() for name, weight in discriminators.named_parameters()}
    outputs = functional_call(discriminators, fixed, (generated,))
    with torch.no_grad():
        target_outputs = discriminators(target)
    generator_loss = sum((1 - x[-1]).square().mean() for x in outputs)
    feature_loss = sum(
        (ours - theirs).abs().mean()
        for x, y in zip(outputs, target_outputs, strict=True)
        for ours, theirs in zip(x[:-1], y[:-1], strict=True)
    )
    return {"discriminators": discriminators_loss, "generator": generator_loss, "features": feature_loss}
