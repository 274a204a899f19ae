"""What teaches a vocoder: how far spectra are apart, and critics who tell made sound from true."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from utils.training.loop import half

FFTS = (256, 512, 1024, 2048)  # samples of the spectra that are compared
FLOOR = 1e-5  # of their power: what is less is as good as silence


def spectral_error(made: Tensor, true: Tensor) -> Tensor:
    """How far spectra of sounds [B, 1, S] are apart, in proportion and in logarithms, at several resolutions."""
    errors = []
    for size in FFTS:
        options = {"n_fft": size, "hop_length": size // 4, "window": torch.hann_window(size), "return_complex": True}
        ours, theirs = (torch.view_as_real(torch.stft(x[:, 0], **options)) for x in (made, true))
        ours, theirs = ((x.square().sum(-1) + FLOOR).sqrt() for x in (ours, theirs))
        errors.append((ours - theirs).abs().mean() / theirs.mean() + (ours.log() - theirs.log()).abs().mean())
    return sum(errors) / len(errors)


class Critic(nn.Module):
    """A small period discriminator of HiFi-GAN: looks at every `period`-th sample, in order."""

    def __init__(self, period: int, widths: Sequence[int] = (1, 16, 32, 64, 64)) -> None:
        super().__init__()
        self.period = period
        self.convs = nn.ModuleList(nn.Conv2d(*pair, (5, 1), (3, 1), (2, 0)) for pair in pairwise(widths))
        self.last = nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0))

    def forward(self, sound: Tensor) -> list[Tensor]:
        """The features of every layer for a sound [B, 1, S], the last of which are scores: 1 for a true one."""
        x = F.pad(sound, (0, -sound.shape[2] % self.period), mode="reflect").unflatten(2, (-1, self.period))
        seen = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            seen.append(x)
        return [*seen, self.last(x)]


class Critics(nn.ModuleList):
    """A critic for every period."""

    def forward(self, sound: Tensor) -> list[list[Tensor]]:
        with half():
            seen = [critic(sound) for critic in self]
        return [[x.float() for x in features] for features in seen]


def opinions(critics: Critics, made: Tensor, true: Tensor) -> dict[str, Tensor]:
    """Errors of least squares: of the critics about both sounds, of the sound made in their eyes, of their features.

    One backward pass serves both sides: the critics see the sound detached, the sound sees their weights detached.
    """
    judged = sum(
        (1 - real[-1]).square().mean() + fake[-1].square().mean()
        for real, fake in zip(critics(true), critics(made.detach()), strict=True)
    )
    fixed = {name: weight.detach() for name, weight in critics.named_parameters()}
    seen = functional_call(critics, fixed, (made,))
    with torch.no_grad():
        wanted = critics(true)
    layers = [pair for x, y in zip(seen, wanted, strict=True) for pair in zip(x[:-1], y[:-1], strict=True)]
    features = sum((ours - theirs).abs().mean() for ours, theirs in layers)
    return {"critics": judged, "fooled": sum((1 - x[-1]).square().mean() for x in seen), "features": features}
