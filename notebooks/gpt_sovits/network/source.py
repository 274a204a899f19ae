"""A harmonic source for the vocoder: sines at the pitch and its multiples, and noise (Wang et al., "Neural
source-filter-based waveform model", ICASSP 2019). `tiny` has it; the released checkpoints do not.

B: batch, T: frames, H: sines, S: samples (T times `hop`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BASE_HZ = 180.0  # the pitch of 0 octaves
MIN_OCTAVES, MAX_OCTAVES = -2.0, 1.7
STEPS = 4  # of the pitch within a frame, between which it is interpolated
TURN = 1 << 17  # units of phase: integers, which neither a long sentence nor BF16 rounds
NOISE_FRAMES = 50  # after which the noise repeats


class Source(nn.Module):
    """Sines in voiced frames, mixed into one signal, and noise.

    harmonics: the number of sines. rate: in Hz. hop: samples of a frame, a multiple of STEPS.
    """

    def __init__(self, harmonics: int, rate: int, hop: int) -> None:
        super().__init__()
        self.rate, self.step = rate, hop // STEPS
        self.mix = nn.Conv1d(harmonics, 1, 1, bias=False)
        noise = torch.randn(NOISE_FRAMES, hop, generator=torch.Generator().manual_seed(0))
        self.register_buffer("noise", noise, persistent=False)
        self.register_buffer("multiples", torch.arange(1, harmonics + 1)[:, None], persistent=False)
        self.register_buffer("samples", torch.arange(self.step), persistent=False)
        places = (torch.arange(STEPS) + 0.5) / STEPS - 0.5  # of the steps in their frame, its middle is 0
        self.register_buffer("earlier", -places.clamp(max=0), persistent=False)
        self.register_buffer("later", places.clamp(min=0), persistent=False)

    def forward(self, pitch: Tensor) -> Tensor:
        """[B, 2, S], the sines and the noise. pitch: [B, 2, T], octaves above BASE_HZ, and voicing from 0 to 1."""
        octaves, voiced = self.interpolated(pitch).split(1, 1)  # [B, 1, STEPS T] each

        # the phase of the first sine at every sample, then of its multiples
        hertz = BASE_HZ * (math.log(2) * octaves.clamp(MIN_OCTAVES, MAX_OCTAVES)).exp()  # [B, 1, STEPS T]
        advance = (TURN / self.rate * hertz).round().int()  # [B, 1, STEPS T], of a sample
        whole = (advance * self.step) & (TURN - 1)
        begin = whole.cumsum(-1) - whole  # [B, 1, STEPS T]
        phase = (begin[..., None] + advance[..., None] * self.samples).flatten(2)  # [B, 1, S]
        phase = ((phase & (TURN - 1)) * self.multiples) & (TURN - 1)  # [B, H, S]
        sines = torch.sin((phase - TURN // 2).to(pitch.dtype) * (2 * math.pi / TURN))  # [B, H, S]

        # the noise
        frames = torch.arange(pitch.shape[2], device=pitch.device) % NOISE_FRAMES  # [T]
        noise = F.embedding(frames, self.noise).reshape(1, 1, -1).expand(len(pitch), -1, -1)  # [B, 1, S]
        voiced = voiced[..., None].expand(-1, -1, -1, self.step).flatten(2)  # [B, 1, S]
        return torch.cat([voiced * self.mix(sines), noise], 1)

    def interpolated(self, pitch: Tensor) -> Tensor:
        """[B, 2, STEPS T] for pitch [B, 2, T], linear between the middles of frames."""
        before = torch.cat([pitch[..., :1], pitch[..., :-1]], -1)  # [B, 2, T]
        after = torch.cat([pitch[..., 1:], pitch[..., -1:]], -1)  # [B, 2, T]
        towards = self.earlier * (before - pitch)[..., None] + self.later * (after - pitch)[..., None]
        return (pitch[..., None] + towards).flatten(2)  # of [B, 2, T, STEPS]
