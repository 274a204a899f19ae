"""Speaker embeddings: `Voiceprint(path)(recording, sample_rate)`. Recordings of one voice have similar embeddings.

An embedding has 256 numbers. A speech synthesizer that was trained with such embeddings can imitate the voice of half a
minute of recording. The file needs openvino, numpy and scipy, and a model of `listening.prepare_encoder`. To use it
elsewhere, copy this file.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import openvino as ov
from scipy.ndimage import binary_dilation
from scipy.signal import resample_poly

SAMPLE_RATE = 16000  # Hz, of the encoder
MIN_SAMPLE_RATE = 8000  # Hz, of a recording
MIN_SPEECH_S, MAX_SPEECH_S = 3.0, 30.0  # the rest of a longer recording is ignored
MIN_LEVEL_DB = -50.0  # of the loudest parts of a recording; full scale is 0
FULL_SCALE, MAX_CLIPPED = 0.995, 0.002  # share of the samples at full scale
MIN_SNR_DB = 20.0  # from the quietest parts of a recording to its loudest ones
BLOCK = 480  # samples of a level, 30 ms
SPEECH_RANGE_DB, NOISE_MARGIN_DB = 30.0, 6.0  # speech is less far below the loudest parts, and further above the noise
PAUSE_BLOCKS = 3  # of a pause that stay on either side of speech
LOUDNESS = -23.0  # dB of full scale; recordings are scaled to it, since the embedding depends on loudness
HOP, WINDOW, STEP = 160, 160, 77  # samples of a frame; frames of a window; frames from one window to the next
MIN_COVERED = 0.75  # share of the last window that the recording covers


class Voiceprint:
    """Resemblyzer's speaker encoder (Wan et al., "Generalized End-to-End Loss for Speaker Verification", ICASSP 2018).

    path: encoder.xml of `listening.prepare_encoder`. Raises ValueError for another file.
    """

    def __init__(self, path: str | Path, device: str = "CPU") -> None:
        try:
            model = ov.Core().read_model(path)
            self._model = ov.Core().compile_model(model, device, {"INFERENCE_PRECISION_HINT": "f32"})
        except RuntimeError as error:
            raise ValueError(f"{path} is not the speaker encoder. Give encoder.xml of prepare_encoder.") from error

    def __call__(self, recording: np.ndarray, sample_rate: int) -> np.ndarray:
        """The embedding of a recording without its pauses: [256] float32 of norm 1.

        recording: as for `speech`, with its errors.
        """
        return self.embed(speech(recording, sample_rate))

    def embed(self, samples: np.ndarray) -> np.ndarray:
        """The embedding of samples [S] float32 at 16 kHz: [256] float32 of norm 1."""
        starts = window_starts(len(samples))
        missing = max(0, (starts[-1] + WINDOW) * HOP - len(samples))
        padded = np.pad(samples, (0, missing))[None]  # [1, S]
        frames = starts[:, None] + np.arange(WINDOW)  # [windows, 160]
        return self._model({"samples": padded, "frames": frames})["embedding"][0].copy()


def speech(recording: np.ndarray, sample_rate: int) -> np.ndarray:
    """The speech of a recording without long pauses: [S] float32 at 16 kHz, of at most MAX_SPEECH_S.

    recording: [n] or [n, channels], floating point in -1..1 or int16; channels are averaged. sample_rate: Hz. Raises
    ValueError for a recording that is empty, silent, clipped or noisy, or has less than MIN_SPEECH_S of speech.
    """
    samples = _mono(recording)
    if not isinstance(sample_rate, int | np.integer) or sample_rate < MIN_SAMPLE_RATE:
        raise ValueError(f"The sample rate is {sample_rate!r}. Record at {MIN_SAMPLE_RATE} Hz or more.")
    if (seconds := len(samples) / sample_rate) < BLOCK / SAMPLE_RATE:
        raise ValueError(f"The recording lasts {seconds:.2f} seconds. Say {MIN_SPEECH_S:g} or more.")
    if (share := (np.abs(samples) >= FULL_SCALE).mean()) > MAX_CLIPPED:
        raise ValueError(f"The recording is clipped: {share:.1%} of it is at full scale. Turn the microphone down.")
    samples = resampled(samples, int(sample_rate))
    samples = samples[: len(samples) // BLOCK * BLOCK]
    levels = 10 * np.log10(np.square(samples.reshape(-1, BLOCK)).mean(1) + 1e-12)
    loud = np.percentile(levels, 95)
    if loud < MIN_LEVEL_DB:
        raise ValueError(f"The recording is silent ({loud:.0f} dB). Check the microphone and speak up.")
    quiet = np.percentile(levels[levels > -100], 5)  # without the zeros of a device that mutes pauses
    if (snr := loud - quiet) < MIN_SNR_DB:
        raise ValueError(
            f"The recording is noisy: its speech is {snr:.0f} dB above the background, and {MIN_SNR_DB:g} are needed. "
            "Record in a quiet room, near the microphone."
        )
    is_speech = levels > max(loud - SPEECH_RANGE_DB, quiet + NOISE_MARGIN_DB)
    if (seconds := is_speech.sum() * BLOCK / SAMPLE_RATE) < MIN_SPEECH_S:
        raise ValueError(f"The recording has {seconds:.1f} seconds of speech. Say {MIN_SPEECH_S:g} or more.")
    keep = np.repeat(binary_dilation(is_speech, iterations=PAUSE_BLOCKS), BLOCK)
    samples = samples[keep][: int(MAX_SPEECH_S * SAMPLE_RATE)]
    return samples * np.float32(10 ** (LOUDNESS / 20) / np.sqrt(np.square(samples).mean()))


def resampled(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Samples [n] at any sample rate (Hz), resampled to [S] float32 at 16 kHz."""
    ratio = Fraction(SAMPLE_RATE, sample_rate)
    if ratio == 1:
        return samples
    return resample_poly(samples, ratio.numerator, ratio.denominator).astype(np.float32)


def window_starts(count: int) -> np.ndarray:
    """The first frames of all windows over `count` samples, int64, without a last one that is hardly covered."""
    frames = count // HOP + 1
    starts = np.arange(0, max(1, frames - WINDOW + STEP + 1), STEP)
    if len(starts) > 1 and count / HOP - starts[-1] < MIN_COVERED * WINDOW:
        return starts[:-1]
    return starts


def _mono(recording: np.ndarray) -> np.ndarray:
    samples = np.asarray(recording)
    if samples.ndim not in (1, 2) or samples.dtype != np.int16 and not np.issubdtype(samples.dtype, np.floating):
        raise ValueError(
            f"The recording is {samples.dtype} of shape {samples.shape}. Give samples [n] or [n, channels], floating "
            "point in -1..1 or int16."
        )
    if not np.isfinite(samples).all():
        raise ValueError("The recording holds values that are not finite. Record or decode it again.")
    scale = 32768 if samples.dtype == np.int16 else 1
    samples = samples.astype(np.float32) / scale
    return samples.mean(1) if samples.ndim == 2 else samples
