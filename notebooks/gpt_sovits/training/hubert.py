"""How the tiny HuBERT is trained: to tell the phone at every fiftieth of a second, whoever says it.

Sound is cut into excerpts, mostly shorter than words, at changed speeds, louder or not, with noise. S: samples, T:
frames of HuBERT, P: phones of a sentence, B: batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import HubertModel

from notebooks.gpt_sovits.data.speech import FRAME, HEARD, Recording
from notebooks.gpt_sovits.training.bert import SYMBOLS, share
from utils.training.loop import half, matrices, optimise

STEPS, RATE, SEED = 2000, 4e-3, 1
SOUND = 48  # seconds that HuBERT hears in a step, and
SECONDS = (0.4, 4.5)  # of one excerpt: mostly short ones, for who hears whole sentences learns words instead of sounds
SPEEDS = (0.88, 1.14)  # of speech in training: pitch and timbre change with it
GAINS, NOISES = (-0.9, 0.3), (-4.0, -1.7)  # powers of ten: loudness, noise's amplitude
AFTER = 9600  # samples of silence that a reference has behind it when its tokens are made
FILTER = 160  # samples of the filters that HuBERT begins with, 10 ms
LOWEST, HIGHEST = 80, 7600  # Hz of these
KERNELS = [FILTER, 3, 3, 3, 3, 2, 2]  # of all layers
HOP_50 = 320  # samples of 16 kHz from a frame to the next
WINDOW_50 = FILTER + 390  # samples that a frame hears; the released one, whose filters have 10, hears 400


def said_at(frames: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Which phone is said at `times` (s, [n]), [n] int64; after the end the last one, which is a pause.

    frames: [P] int64, how long every phone lasts, in units of FRAME.
    """
    return np.searchsorted(frames.cumsum() * FRAME, times, side="right").clip(max=len(frames) - 1)


def heard_frames(samples: int) -> np.ndarray:
    """The times (s) of the frames that HuBERT makes of so many samples: the middle of what each hears."""
    return (np.arange((samples - WINDOW_50) // HOP_50 + 1) * HOP_50 + WINDOW_50 / 2) / HEARD


class Excerpts:
    """Excerpts of recordings with the phone at every frame; each draw is a function of the generator passed in."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = recordings
        self.sounds = [np.pad(x.heard, (0, AFTER)) for x in recordings]

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Sounds [B, S] at 16 kHz and phones [B, T] int64, of recordings at other speeds, louder or not, with noise."""
        seconds = np.exp(rng.uniform(*np.log(SECONDS)))
        count, length = round(SOUND / seconds), int(HEARD * seconds)
        drawn = [self.excerpt(int(i), length, rng) for i in rng.integers(len(self.recordings), size=count)]
        sounds, phones = (np.stack(x) for x in zip(*drawn, strict=True))
        return torch.from_numpy(sounds), torch.from_numpy(phones)

    def excerpt(self, i: int, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        sound, recording, speed = self.sounds[i], self.recordings[i], rng.uniform(*SPEEDS)
        start = rng.uniform(0, max(0.0, len(sound) - speed * length))
        cut = np.interp(start + speed * np.arange(length), np.arange(len(sound)), sound, right=0)
        cut = cut * 10 ** rng.uniform(*GAINS) + 10 ** rng.uniform(*NOISES) * rng.standard_normal(length)
        times = start / HEARD + speed * heard_frames(length)
        return cut.astype(np.float32), recording.phones[said_at(recording.frames, times)]


class Listener(nn.Module):
    """HuBERT, and a line that reads the phone from its states."""

    def __init__(self, hubert: HubertModel) -> None:
        super().__init__()
        self.hubert, self.phones = hubert, nn.Linear(hubert.config.hidden_size, SYMBOLS)

    def forward(self, sounds: Tensor) -> Tensor:
        """Logits [B, T, SYMBOLS] of sounds [B, S]."""
        return self.phones(self.hubert(sounds).last_hidden_state)


def filters(count: int) -> Tensor:
    """So many filters [count, 1, FILTER] of one norm, pairs of a cosine and a sine under a bell (Gabor, 1946).

    Their frequencies are as far apart as the ear tells them, and each is as wide as that.
    """
    mel = torch.linspace(*(2595 * np.log10(1 + hz / 700) for hz in (LOWEST, HIGHEST)), count // 2 + 2)
    hz = 700 * (10 ** (mel / 2595) - 1)
    times = (torch.arange(FILTER) - (FILTER - 1) / 2) / HEARD
    wide = (1 / (0.6 * np.pi * (hz[2:] - hz[:-2]))).clamp(max=FILTER / 5 / HEARD)  # s, the deviation of the bell
    bell = (-0.5 * (times / wide[:, None]).square()).exp()
    waves = 2 * np.pi * hz[1:-1, None] * times
    return F.normalize(torch.cat([bell * waves.cos(), bell * waves.sin()]))[:, None]


def learn_to_listen(work: Path, hubert: HubertModel, excerpts: Excerpts) -> Listener:
    """Teach HuBERT the phones."""
    torch.manual_seed(SEED)
    network, ears = Listener(hubert), hubert.feature_extractor.conv_layers[0].conv.weight
    ears.data.copy_(filters(len(ears)))
    ears.requires_grad_(False)

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        sounds, phones = excerpts.draw(rng)
        with half():
            logits = network(sounds)
        wrong = F.cross_entropy(logits.float().flatten(0, 1), phones.flatten())
        return {"loss": wrong, "phones right": share(logits, phones)}

    hidden = matrices(hubert.feature_extractor, hubert.encoder.layers)
    optimise(work / "hubert.pt", network, loss, steps=STEPS, rate=RATE, seed=SEED, muon=hidden)
    return network


@torch.no_grad()
def states(hubert: HubertModel, sound: np.ndarray) -> Tensor:
    """HuBERT's states [T, C] of a sound [S] at 16 kHz."""
    return hubert(torch.from_numpy(sound)[None]).last_hidden_state[0].clone()


def told(hubert: HubertModel, recording: Recording) -> tuple[Tensor, Tensor]:
    """HuBERT's states [T, C] of a recording, and the phone [T] int64 that is said at each."""
    said = said_at(recording.frames, heard_frames(len(recording.heard)))
    return states(hubert, recording.heard), torch.from_numpy(recording.phones[said])
