"""Distances of mel spectrograms, and the sound that Griffin and Lim's algorithm makes of one."""

import numpy as np
import pytest

from utils.speech import spectra
from utils.speech.speaker_encoder import SAMPLE_RATE


def test_twice_as_loud_is_six_decibels_away():
    noise = np.random.default_rng(0).standard_normal(16_000).astype(np.float32) / 20
    assert spectra.mel_distance(noise, noise) == 0
    assert spectra.mel_distance(2 * noise, noise[:-100]) == pytest.approx(6.02, abs=0.01)
    assert spectra.mel_distance(1e-6 * noise, 1e-7 * noise) == 0  # neither is heard


def test_griffin_lim_keeps_the_spectrogram_and_not_the_sound():
    rng, times = np.random.default_rng(0), np.arange(16_000) / SAMPLE_RATE
    voiced = sum(np.sin(2 * np.pi * 120 * k * times + rng.uniform(0, 6)) / k for k in range(1, 30))
    sound = (voiced * np.hanning(16_000) / 8).astype(np.float32)
    again = spectra.griffin_lim(sound)
    assert again.shape == sound.shape and spectra.mel_distance(again, sound) < 4
    assert abs(np.corrcoef(again, sound)[0, 1]) < 0.5
