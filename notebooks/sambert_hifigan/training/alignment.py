"""Lessons: symbols and the speech that is aligned to them, as the tiny checkpoint learns from it.

Frames have mel spectrogram, pitch and voicing, symbols the means of theirs. B: batch, S: samples at 16 kHz, F: frames
of 200 samples, T: symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from notebooks.sambert_hifigan.pipeline.frontend import Frontend, standard_tables
from utils.speech.kokoro_teacher import HOP, RATE
from utils.speech.spectra import mel_filters

MELS, FFT, WINDOW = 80, 1024, 800  # channels; samples of the transform and of its window
FLOOR = 1e-5  # of amplitudes: a lower one is as good as silence
MEAN, DEVIATION = -5.0, 2.5  # about those of the logarithm of amplitudes in speech
BASE_F0, SPAN_F0 = 200.0, 60.0  # Hz, about mean and deviation of the voices' pitch

TABLES = standard_tables(["F7"])  # of symbols; the speaker's name is of no matter where voices are embeddings


class Lesson(NamedTuple):
    """A sentence of T symbols and F frames."""

    voice: str
    ling: Tensor  # [T, 4] int64, and
    emotion: Tensor  # [T] int64: what `KanTtsSAMBERT.encode` takes
    frames: Tensor  # [T] int64
    pitch: Tensor  # [T], and
    energy: Tensor  # [T]: means over the symbols' frames
    mel: Tensor  # [F, 82]
    samples: np.ndarray  # [F * HOP] int16

    @property
    def sound(self) -> np.ndarray:
        return self.samples.astype(np.float32) / 32767


def read_lessons(files: Sequence[Path]) -> list[Lesson]:
    """What there is to learn in recorded sentences."""
    frontend, lessons = Frontend(TABLES), []
    for file in tqdm(files, desc="lessons", mininterval=5):
        with np.load(file, allow_pickle=False) as stored:
            text, voice, samples, frames, f0 = (stored[key] for key in ("text", "voice", "samples", "frames", "f0"))
        ids = frontend.ids(frontend.symbols(str(text)))
        ling = torch.tensor([ids[stream] for stream in ("sy", "tone", "syllable_flag", "word_segment")]).T
        sound = torch.from_numpy(samples.astype(np.float32) / 32767)
        channels = np.concatenate([mel_spectrogram(sound[None])[0].numpy(), pitch_and_voicing(f0)])
        means = [torch.from_numpy(symbol_means(x, frames)) for x in (channels[MELS], channels[:MELS].mean(0))]
        mel = torch.from_numpy(channels.T.copy())
        lessons.append(
            Lesson(str(voice), ling, torch.tensor(ids["emotion"]), torch.from_numpy(frames), *means, mel, samples)
        )
    return lessons


def join(lessons: Sequence[Lesson]) -> Lesson:
    """Sentences of a voice as one, their ends being pauses, but for the last."""
    fields = {
        field: torch.cat([getattr(lesson, field) for lesson in lessons])
        for field in ("ling", "emotion", "frames", "pitch", "energy", "mel")
    }
    sy = fields["ling"][:-1, 0]
    sy[sy == TABLES["sy"].index("@#4")] = TABLES["sy"].index("@#3")
    return Lesson(voice=lessons[0].voice, samples=np.concatenate([lesson.samples for lesson in lessons]), **fields)


@cache
def _window() -> Tensor:
    return F.pad(torch.hann_window(WINDOW), ((FFT - WINDOW) // 2,) * 2)


@cache
def _filters() -> Tensor:
    return torch.from_numpy(mel_filters(FFT, MELS, RATE)).float()


def mel_spectrogram(samples: Tensor) -> Tensor:
    """Logarithms of amplitudes, about normally distributed: [B, 80, F] for samples [B, S], S a multiple of HOP.

    A frame's window has its middle in the middle of the frame's samples.
    """
    padded = F.pad(samples[:, None], ((FFT - HOP) // 2,) * 2, mode="reflect")[:, 0]
    spectrum = torch.stft(padded, FFT, HOP, window=_window(), center=False, return_complex=True)
    power = torch.view_as_real(spectrum).square().sum(-1)
    amplitudes = (power + 1e-9).sqrt().transpose(1, 2) @ _filters()
    return (amplitudes.clamp_min(FLOOR).log().transpose(1, 2) - MEAN) / DEVIATION


def pitch_and_voicing(f0: np.ndarray) -> np.ndarray:
    """The two channels behind the mel spectrogram, [2, F] float32, for f0 [F] in Hz, 0 without voice.

    The pitch is a line from voice to voice, and scaled, so that the acoustic model has something smooth to say; the
    voicing is 0 or 1.
    """
    voiced = f0 > 0
    if not voiced.any():
        return np.zeros((2, len(f0)), np.float32)
    pitch = np.interp(np.arange(len(f0)), np.flatnonzero(voiced), f0[voiced])
    return np.stack([(pitch - BASE_F0) / SPAN_F0, voiced]).astype(np.float32)


def symbol_means(values: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Means [T] float32 of values [F] over every symbol's frames [T]; 0 for a symbol that has none."""
    sums = np.concatenate([[0], values.astype(np.float64).cumsum()])
    ends = frames.cumsum()
    return ((sums[ends] - sums[ends - frames]) / np.maximum(frames, 1)).astype(np.float32)
