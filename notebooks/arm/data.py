"""A melody and white noise."""

from __future__ import annotations

import numpy as np

RATE_HZ = 8000
NOTES_HZ = (262, 330, 392, 523)
NOTE_S = 0.25
NOISE = 0.05  # standard deviation


def melody() -> np.ndarray:
    """Four notes with two overtones each, float32 [1, samples] from -1 to 1."""
    seconds = np.arange(round(NOTE_S * RATE_HZ)) / RATE_HZ
    envelope = np.minimum(seconds / 0.01, 1) * np.exp(-3 * seconds)
    waves = [sum(np.sin(2 * np.pi * k * note * seconds) / k**2 for k in (1, 2, 3)) for note in NOTES_HZ]
    return (0.4 * np.concatenate([envelope * wave for wave in waves]))[None].astype(np.float32)


def noisy(level: float = NOISE) -> np.ndarray:
    """The melody with white noise of a standard deviation, float32 [1, samples]."""
    clean = melody()
    return (clean + level * np.random.default_rng(0).standard_normal(clean.shape)).astype(np.float32)


def snr_db(sound: np.ndarray, clean: np.ndarray) -> float:
    """Signal-to-noise ratio of a sound in dB: what differs from `clean` is noise."""
    noise = np.square(sound.astype(float) - clean).sum()
    return float(10 * np.log10(np.square(clean.astype(float)).sum() / noise))
