"""Trains the tiny HuBERT to classify the phoneme at every fiftieth of a second, whatever the voice.

Sound is cut into excerpts, mostly shorter than words, with random speed, loudness and noise. S: samples, T: frames of
HuBERT, P: phonemes of a sentence, B: batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import HubertModel

from notebooks.gpt_sovits.data.speech import FRAME_S, Recording
from notebooks.gpt_sovits.pipeline.constants import HUBERT_RATE_HZ, SILENCE_SAMPLES
from notebooks.gpt_sovits.training.labels import PHONEMES, accuracy
from utils.training.loop import autocast, matrices, optimise

STEPS, LEARNING_RATE, SEED = 2000, 4e-3, 1
BATCH_S = 48  # seconds of sound in a batch
EXCERPT_S = (0.4, 4.5)  # shortest and longest: most are short, for from whole sentences a network learns words
SPEEDS = (0.88, 1.14)  # of speech in training: pitch and timbre change with it
GAIN_EXPONENTS, NOISE_EXPONENTS = (-0.9, 0.3), (-4.0, -1.7)  # powers of ten: loudness, amplitude of the noise
FILTER_SAMPLES = 160  # of the filters in HuBERT's first layer, 10 ms
MIN_FILTER_HZ, MAX_FILTER_HZ = 80, 7600  # of these
KERNELS = [FILTER_SAMPLES, 3, 3, 3, 3, 2, 2]  # of all convolutions
HOP_SAMPLES = 320  # from a frame to the next
WINDOW_SAMPLES = FILTER_SAMPLES + 390  # a frame's receptive field; the released one, whose filters have 10, has 400


def phoneme_at(frames: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The index [n] int64 of the phoneme at `times` ([n], s); after the end the last one, which is a pause.

    frames: [P] int64, the duration of every phoneme, in units of FRAME_S.
    """
    return np.searchsorted(frames.cumsum() * FRAME_S, times, side="right").clip(max=len(frames) - 1)


def frame_times(samples: int) -> np.ndarray:
    """The times ([T], s) of HuBERT's frames for so many samples: the middle of each receptive field."""
    count = (samples - WINDOW_SAMPLES) // HOP_SAMPLES + 1
    return (np.arange(count) * HOP_SAMPLES + WINDOW_SAMPLES / 2) / HUBERT_RATE_HZ


class Excerpts:
    """Excerpts of recordings with the phoneme at every frame; each draw is a function of the generator passed in."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = recordings
        self.sounds = [np.pad(x.hubert_sound, (0, SILENCE_SAMPLES)) for x in recordings]

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Sounds [B, S] at 16 kHz and phonemes [B, T] int64, with random speed, loudness and noise."""
        seconds = np.exp(rng.uniform(*np.log(EXCERPT_S)))
        count, length = round(BATCH_S / seconds), int(HUBERT_RATE_HZ * seconds)
        drawn = [self.excerpt(int(i), length, rng) for i in rng.integers(len(self.recordings), size=count)]
        sounds, phones = (np.stack(x) for x in zip(*drawn, strict=True))
        return torch.from_numpy(sounds), torch.from_numpy(phones)

    def excerpt(self, i: int, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Sound [length] float32 and phonemes [T] int64 of an excerpt of the i-th recording."""
        sound, recording, speed = self.sounds[i], self.recordings[i], rng.uniform(*SPEEDS)
        start = rng.uniform(0, max(0.0, len(sound) - speed * length))
        cut = np.interp(start + speed * np.arange(length), np.arange(len(sound)), sound, right=0)
        gain, noise = 10 ** rng.uniform(*GAIN_EXPONENTS), 10 ** rng.uniform(*NOISE_EXPONENTS)
        cut = cut * gain + noise * rng.standard_normal(length)
        times = start / HUBERT_RATE_HZ + speed * frame_times(length)
        return cut.astype(np.float32), recording.phones[phoneme_at(recording.frames, times)]


class PhonemeClassifier(nn.Module):
    """HuBERT with a linear classifier of phonemes on its states."""

    def __init__(self, hubert: HubertModel) -> None:
        super().__init__()
        self.hubert, self.phones = hubert, nn.Linear(hubert.config.hidden_size, PHONEMES)

    def forward(self, sounds: Tensor) -> Tensor:
        """Logits [B, T, PHONEMES] of sounds [B, S]."""
        return self.phones(self.hubert(sounds).last_hidden_state)


def gabor_filters(count: int) -> Tensor:
    """Gabor filters [count, 1, FILTER_SAMPLES] of one norm: cosines, then sines, under a Gaussian (Gabor, 1946).

    Their frequencies are equidistant on the mel scale, and the width of each is that distance.
    """
    mel = torch.linspace(*(2595 * np.log10(1 + hz / 700) for hz in (MIN_FILTER_HZ, MAX_FILTER_HZ)), count // 2 + 2)
    hz = 700 * (10 ** (mel / 2595) - 1)  # [count / 2 + 2]
    times = (torch.arange(FILTER_SAMPLES) - (FILTER_SAMPLES - 1) / 2) / HUBERT_RATE_HZ  # [FILTER_SAMPLES], s
    longest = FILTER_SAMPLES / 5 / HUBERT_RATE_HZ
    deviations = (1 / (0.6 * np.pi * (hz[2:] - hz[:-2]))).clamp(max=longest)  # [count / 2], s, of the Gaussians
    bells = (-0.5 * (times / deviations[:, None]).square()).exp()  # [count / 2, FILTER_SAMPLES]
    phases = 2 * np.pi * hz[1:-1, None] * times  # [count / 2, FILTER_SAMPLES]
    return F.normalize(torch.cat([bells * phases.cos(), bells * phases.sin()]))[:, None]


def train(work: Path, hubert: HubertModel, excerpts: Excerpts) -> PhonemeClassifier:
    """Train HuBERT as part of a classifier of phonemes, which is returned."""
    torch.manual_seed(SEED)
    network = PhonemeClassifier(hubert)

    # the first layer has fixed filters
    first_layer = hubert.feature_extractor.conv_layers[0].conv.weight
    first_layer.data.copy_(gabor_filters(len(first_layer)))
    first_layer.requires_grad_(False)

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        sounds, phones = excerpts.draw(rng)  # [B, S], [B, T]
        with autocast():
            logits = network(sounds)  # [B, T, PHONEMES]
        error = F.cross_entropy(logits.float().flatten(0, 1), phones.flatten())
        return {"loss": error, "phoneme accuracy": accuracy(logits, phones)}

    hidden = matrices(hubert.feature_extractor, hubert.encoder.layers)
    optimise(work / "hubert.pt", network, loss, steps=STEPS, rate=LEARNING_RATE, seed=SEED, muon=hidden)
    return network


@torch.no_grad()
def states(hubert: HubertModel, sound: np.ndarray) -> Tensor:
    """HuBERT's states [T, C] of a sound [S] at 16 kHz."""
    return hubert(torch.from_numpy(sound)[None]).last_hidden_state[0].clone()


def labelled_states(hubert: HubertModel, recording: Recording) -> tuple[Tensor, Tensor]:
    """HuBERT's states [T, C] of a recording, and the phoneme [T] int64 at each."""
    indices = phoneme_at(recording.frames, frame_times(len(recording.hubert_sound)))
    return states(hubert, recording.hubert_sound), torch.from_numpy(recording.phones[indices])
