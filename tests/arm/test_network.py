"""The noise gate gives a sound back, cleans a noisy one, and has two forms that compute the same."""

import numpy as np
import pytest
import torch

from notebooks.arm import data, network
from notebooks.arm.network import HOP, WINDOW, NoiseGate


@torch.inference_mode()
def gated(sound: np.ndarray, **options) -> np.ndarray:
    return NoiseGate(**options).eval()(torch.from_numpy(sound)).numpy()


def test_without_a_threshold_the_sound_comes_back(monkeypatch):
    monkeypatch.setattr(network, "THRESHOLD", -1)
    sound = data.noisy()
    assert np.abs(gated(sound) - sound).max() < 1e-5


def test_the_kernel_is_a_fourier_transform():
    frame = np.random.default_rng(0).standard_normal(WINDOW)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    expected = np.fft.rfft(frame * np.sqrt(hann)) / np.sqrt(WINDOW)
    expected[1:-1] *= np.sqrt(2)
    found = network.fourier()[:, 0].numpy() @ frame
    assert np.abs(found[: network.BINS] + 1j * found[network.BINS :] - expected).max() < 1e-4


def test_noise_goes_and_the_melody_stays():
    clean = data.melody()
    before, after = data.snr_db(data.noisy(), clean), data.snr_db(gated(data.noisy()), clean)
    assert after > before + 3
    assert clean.shape[1] % HOP == 0 and np.abs(clean).max() <= 1


def test_both_forms_compute_the_same():
    assert (gated(data.noisy()) == gated(data.noisy(), choice=True)).all()


def test_a_signal_to_noise_ratio_is_in_db():
    clean = data.melody()
    assert data.snr_db(clean * 1.1, clean) == pytest.approx(20, abs=1e-3)
