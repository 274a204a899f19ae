"""Trains the vocoder by its spectra, and then against discriminators.

B: batch, F: frames, S: samples, H: sines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from notebooks.sambert_hifigan.network.vocoder import Generator
from notebooks.sambert_hifigan.training.alignment import BASE_F0_HZ, FFT, MELS, SPAN_F0_HZ, AlignedSentence
from utils.speech.kokoro_teacher import HOP, SAMPLE_RATE_HZ
from utils.training.loop import autocast, matrices, optimise
from utils.training.vocoder import Discriminators, PeriodDiscriminator, adversarial_losses, spectral_error

# fmt: off
PARAMETERS = {
    "in_channels": MELS, "out_channels": 1, "channels": 128, "kernel_size": 7, "upsample_scales": [10, 5, 2, 2],
    "upsample_kernal_sizes": [20, 11, 4, 4], "resblock_kernel_sizes": [3, 7], "bias": True, "causal": False,
    "resblock_dilations": [[1, 3, 5]] * 2, "nonlinear_activation": "LeakyReLU",
    "nonlinear_activation_params": {"negative_slope": 0.1}, "use_weight_norm": False,
    "nsf_params": {"nb_harmonics": 7, "sampling_rate": SAMPLE_RATE_HZ},
}
# fmt: on
SPECTRAL_STEPS, SPECTRAL_LEARNING_RATE = 2500, 3e-3
ADVERSARIAL_STEPS, ADVERSARIAL_LEARNING_RATE = 1600, 5e-4
BATCH, SEGMENT = 16, 32  # segments of a step; frames of a segment
PERIODS = (2, 3, 5, 7, 11)  # of the discriminators, as in the paper
SPECTRAL_WEIGHT, FEATURE_WEIGHT = 15.0, 2.0  # of the losses, relative to the adversarial loss
MIN_F0_HZ = 30


class Segments:
    """Random segments of sentences, with true or predicted mel spectrograms."""

    def __init__(self, sentences: Sequence[AlignedSentence], mels: Sequence[Tensor] = ()) -> None:
        """mels: predictions of the acoustic model for each sentence, [F, 80]; half of the segments then use them."""
        self.sentences, self.mels = sentences, mels

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Inputs of the vocoder, mel [B, 82, SEGMENT], and the true samples [B, 1, S].

        The last two channels are the pitch in Hz and the voicing.
        """
        mels, sounds = [], []
        for i in rng.integers(len(self.sentences), size=count):
            sentence = self.sentences[i]
            start = int(rng.integers(len(sentence.mel) - SEGMENT + 1))
            frames = slice(start, start + SEGMENT)
            pitch = (sentence.mel[frames, MELS] * SPAN_F0_HZ + BASE_F0_HZ).clamp_min(MIN_F0_HZ)  # [SEGMENT]
            mel = self.mels[i] if self.mels and rng.random() < 0.5 else sentence.mel[:, :MELS]  # [F, 80]
            channels = torch.cat([mel[frames], pitch[:, None], sentence.mel[frames, MELS + 1 :]], 1)  # [SEGMENT, 82]
            mels.append(channels.T)
            sounds.append(sentence.samples[start * HOP : (start + SEGMENT) * HOP])
        samples = torch.from_numpy(np.stack(sounds)).float() / 32767  # [B, S]
        return torch.stack(mels), samples[:, None]


def generate(vocoder: Generator, mel: Tensor, rng: np.random.Generator) -> Tensor:
    """Sound [B, 1, S] for mel [B, 82, F], with random phases and noise in the source."""
    random = torch.Generator().manual_seed(int(rng.integers(2**31)))
    phase = (torch.rand(len(mel), vocoder.sines, 1, generator=random) * 2 - 1) * torch.pi  # [B, H, 1]
    phase[:, 0] = 0
    noise = torch.randn(len(mel), vocoder.sines, mel.shape[2] * vocoder.hop, generator=random)  # [B, H, S]
    with autocast():
        return vocoder(mel, phase, noise).float()


def train_spectral(work: Path, vocoder: Generator, segments: Segments) -> None:
    """Train the vocoder by the spectra of its sounds. work: folder of the training state."""

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # draw a batch
        mel, true = segments.draw(BATCH, rng)  # [B, 82, SEGMENT], [B, 1, S]

        # generate, and compare spectra
        return {"loss": spectral_error(generate(vocoder, mel, rng), true)}

    hidden = matrices(vocoder)
    optimise(work / "vocoder.pt", vocoder, loss, steps=SPECTRAL_STEPS, rate=SPECTRAL_LEARNING_RATE, muon=hidden)


def train_adversarial(work: Path, vocoder: Generator, segments: Segments) -> None:
    """Train the vocoder and its discriminators against each other. work: folder of the training state."""
    discriminators = Discriminators(PeriodDiscriminator(period) for period in PERIODS)
    network = nn.ModuleDict({"vocoder": vocoder, "critics": discriminators})

    def loss(step: int, rng: np.random.Generator) -> dict[str, Tensor]:
        # draw a batch
        mel, true = segments.draw(BATCH, rng)  # [B, 82, SEGMENT], [B, 1, S]

        # generate
        generated = generate(vocoder, mel, rng)  # [B, 1, S]

        # losses of the discriminators and of the vocoder
        losses = adversarial_losses(discriminators, generated, true)
        losses["spectra"] = spectral_error(generated, true)
        total = losses["discriminators"] + losses["generator"]
        total = total + FEATURE_WEIGHT * losses["features"] + SPECTRAL_WEIGHT * losses["spectra"]
        return {"loss": total} | losses

    hidden = matrices(vocoder)
    optimise(work / "finish.pt", network, loss, steps=ADVERSARIAL_STEPS, rate=ADVERSARIAL_LEARNING_RATE, muon=hidden)


def new_vocoder() -> Generator:
    """The vocoder with random weights."""
    audio = {"sampling_rate": SAMPLE_RATE_HZ, "hop_length": HOP, "n_fft": FFT, "num_mels": MELS}
    return Generator({"Model": {"Generator": {"params": PARAMETERS}}, "audio_config": audio})
