"""Aligned sentences, the training data of the tiny checkpoint: symbols, and the frames that belong to each of them.

A frame has mel spectrogram, pitch and voicing; a symbol has the means of its frames. B: batch, S: samples at 16 kHz, F:
frames of 200 samples, T: symbols.
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
from utils.speech.kokoro_teacher import HOP, SAMPLE_RATE_HZ
from utils.speech.spectra import mel_filters

MELS, FFT, WINDOW = 80, 1024, 800  # channels; samples of the transform and of its window
MIN_AMPLITUDE = 1e-5  # lower amplitudes count as silence
LOG_MEAN, LOG_DEVIATION = -5.0, 2.5  # approximate statistics of log amplitudes in speech
BASE_F0_HZ, SPAN_F0_HZ = 200.0, 60.0  # approximate mean and standard deviation of the pitch

TABLES = standard_tables(["F7"])  # of symbols; the name of the speaker is not used, since voices are embeddings


class AlignedSentence(NamedTuple):
    """A sentence of T symbols and F frames."""

    voice: str
    ling: Tensor  # [T, 4] int64, see `KanTtsSAMBERT.encode`
    emotion: Tensor  # [T] int64
    frames: Tensor  # [T] int64, the number of frames of every symbol
    pitch: Tensor  # [T], mean over the frames of the symbol
    energy: Tensor  # [T], mean over the frames of the symbol
    mel: Tensor  # [F, 82], with pitch and voicing in the last two channels
    samples: np.ndarray  # [F * HOP] int16

    @property
    def sound(self) -> np.ndarray:
        return self.samples.astype(np.float32) / 32767


def read_sentences(files: Sequence[Path]) -> list[AlignedSentence]:
    """Read the files of `speech.make_speech` and compute their features."""
    frontend, sentences = Frontend(TABLES), []
    for file in tqdm(files, desc="sentences", mininterval=5):
        with np.load(file, allow_pickle=False) as stored:
            text, voice, samples, frames, f0 = (stored[key] for key in ("text", "voice", "samples", "frames", "f0"))

        # symbols
        ids = frontend.ids(frontend.symbols(str(text)))
        ling = torch.tensor([ids[stream] for stream in ("sy", "tone", "syllable_flag", "word_segment")]).T  # [T, 4]

        # features of frames
        sound = torch.from_numpy(samples.astype(np.float32) / 32767)  # [S]
        mel = mel_spectrogram(sound[None])[0].numpy()  # [80, F]
        channels = np.concatenate([mel, pitch_and_voicing(f0)])  # [82, F]

        # features of symbols
        pitch = symbol_means(channels[MELS], frames)  # [T]
        energy = symbol_means(channels[:MELS].mean(0), frames)  # [T]

        sentence = AlignedSentence(
            voice=str(voice),
            ling=ling,
            emotion=torch.tensor(ids["emotion"]),
            frames=torch.from_numpy(frames),
            pitch=torch.from_numpy(pitch),
            energy=torch.from_numpy(energy),
            mel=torch.from_numpy(channels.T.copy()),
            samples=samples,
        )
        sentences.append(sentence)
    return sentences


def join(sentences: Sequence[AlignedSentence]) -> AlignedSentence:
    """Sentences of a voice joined to one. The ends of all but the last become pauses."""
    fields = {
        field: torch.cat([getattr(sentence, field) for sentence in sentences])
        for field in ("ling", "emotion", "frames", "pitch", "energy", "mel")
    }
    sy = fields["ling"][:-1, 0]
    sy[sy == TABLES["sy"].index("@#4")] = TABLES["sy"].index("@#3")
    return AlignedSentence(
        voice=sentences[0].voice, samples=np.concatenate([sentence.samples for sentence in sentences]), **fields
    )


@cache
def _window() -> Tensor:
    return F.pad(torch.hann_window(WINDOW), ((FFT - WINDOW) // 2,) * 2)


@cache
def _filters() -> Tensor:
    return torch.from_numpy(mel_filters(FFT, MELS, SAMPLE_RATE_HZ)).float()


def mel_spectrogram(samples: Tensor) -> Tensor:
    """Log amplitudes [B, 80, F], scaled to about mean 0 and deviation 1, for samples [B, S], S a multiple of HOP.

    The window of a frame is centred on the samples of the frame.
    """
    padded = F.pad(samples[:, None], ((FFT - HOP) // 2,) * 2, mode="reflect")[:, 0]  # [B, S + FFT - HOP]
    spectrum = torch.stft(padded, FFT, HOP, window=_window(), center=False, return_complex=True)  # [B, 513, F]
    power = torch.view_as_real(spectrum).square().sum(-1)
    amplitudes = (power + 1e-9).sqrt().transpose(1, 2) @ _filters()  # [B, F, 80]
    return (amplitudes.clamp_min(MIN_AMPLITUDE).log().transpose(1, 2) - LOG_MEAN) / LOG_DEVIATION


def pitch_and_voicing(f0: np.ndarray) -> np.ndarray:
    """The last two channels of a frame, [2, F] float32, for f0 [F] in Hz, which is 0 in unvoiced frames.

    The pitch is scaled, and interpolated in unvoiced frames, so that the acoustic model predicts a smooth curve. The
    voicing is 0 or 1.
    """
    voiced = f0 > 0
    if not voiced.any():
        return np.zeros((2, len(f0)), np.float32)
    pitch = np.interp(np.arange(len(f0)), np.flatnonzero(voiced), f0[voiced])
    return np.stack([(pitch - BASE_F0_HZ) / SPAN_F0_HZ, voiced]).astype(np.float32)


def symbol_means(values: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Means [T] float32 of values [F] over the frames of every symbol; 0 for a symbol without frames. frames: [T]."""
    sums = np.concatenate([[0], values.astype(np.float64).cumsum()])
    ends = frames.cumsum()
    return ((sums[ends] - sums[ends - frames]) / np.maximum(frames, 1)).astype(np.float32)
