"""Mel spectrograms of sounds at 16 kHz, their distances, and their inversion by Griffin-Lim."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

SAMPLE_RATE = 16000  # Hz
FFT, HOP, MELS = 1024, 200, 80  # samples of a window; samples between two windows; channels
FLOOR = 1e-3  # of amplitudes; loud speech reaches 1, and sound 60 dB below is not audible
GRIFFIN_LIM_ITERATIONS = 32


@cache
def mel_filters(fft: int, channels: int, sample_rate: int) -> np.ndarray:
    """Triangular filters [fft / 2 + 1, channels] from 0 Hz to half the sample rate (Slaney's mel scale and norm)."""
    from transformers.audio_utils import mel_filter_bank

    return mel_filter_bank(fft // 2 + 1, channels, 0.0, sample_rate / 2, sample_rate, "slaney", "slaney")


def log_mel(samples: np.ndarray) -> np.ndarray:
    """Mel spectrogram [80, F] in dB of samples at 16 kHz."""
    return 20 * np.log10(np.maximum(_filters().T @ np.abs(_stft(samples)), FLOOR))


def mel_distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The mean absolute difference of the mel spectrograms of two sounds in dB, over the length of the shorter one."""
    count = min(len(ours), len(theirs))
    return float(np.abs(log_mel(ours[:count]) - log_mel(theirs[:count])).mean())


def griffin_lim(samples: np.ndarray) -> np.ndarray:
    """A negative control: the sound rebuilt from its mel spectrogram without a vocoder (Griffin and Lim, 1984)."""
    mel = 10 ** (log_mel(samples) / 20)  # [80, F]
    magnitude = np.maximum(np.linalg.pinv(_filters().T) @ mel, 0)  # [513, F]
    phase = np.exp(2j * np.pi * np.random.default_rng(0).random(magnitude.shape))
    for _ in range(GRIFFIN_LIM_ITERATIONS):
        sound = _istft(magnitude * phase, len(samples))
        phase = np.exp(1j * np.angle(_stft(sound)))
    return _istft(magnitude * phase, len(samples))


def mean_mel_distance(sounds: Sequence[np.ndarray], references: Sequence[np.ndarray]) -> float:
    """The mean of `mel_distance` over pairs of sounds."""
    return float(np.mean([mel_distance(ours, theirs) for ours, theirs in zip(sounds, references, strict=True)]))


def _filters() -> np.ndarray:
    return mel_filters(FFT, MELS, SAMPLE_RATE)


def _stft(samples: np.ndarray) -> np.ndarray:
    x = torch.from_numpy(np.ascontiguousarray(samples, np.float32))
    return torch.stft(x, FFT, HOP, window=torch.hann_window(FFT), return_complex=True).numpy()


def _istft(spectrum: np.ndarray, length: int) -> np.ndarray:
    x = torch.from_numpy(spectrum.astype(np.complex64))
    return torch.istft(x, FFT, HOP, window=torch.hann_window(FFT), length=length).numpy()
