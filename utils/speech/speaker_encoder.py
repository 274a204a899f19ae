"""Who speaks: `Voiceprint(path)(recording, sample_rate)`, 256 numbers that are near for the same voice.

An SE voice of `pipeline.Synthesizer` speaks with them: a personal voice from half a minute of recording. Needs
openvino, numpy and scipy; the model is what `listening.prepare_encoder` makes. To use it elsewhere copy this file.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import openvino as ov
from scipy.ndimage import binary_dilation
from scipy.signal import resample_poly

SAMPLE_RATE = 16000  # Hz, of what the encoder hears
LOWEST_RATE = 8000  # Hz, of a recording
SHORTEST, LONGEST = 3.0, 30.0  # seconds of speech: what is needed; what is listened to
QUIETEST = -50.0  # dB below full scale, of the loudest parts of a recording
FULL, CLIPPED = 0.995, 0.002  # full scale; share of the samples there, at most
NOISE = 20.0  # dB from the loudest parts of a recording down to its quietest ones, at least
BLOCK = 480  # samples whose level is one number, 30 ms
SPEECH, ABOVE = 30.0, 6.0  # dB below the loudest parts, and above the quietest: what is quieter is a pause
PAUSE = 3  # blocks of a pause that are kept on either side of speech
LOUDNESS = -23.0  # dB of full scale; every recording is made as loud, for the encoder hears loudness, too
HOP, WINDOW, STEP = 160, 160, 77  # samples a frame; frames that the encoder hears at a time; frames to the next ones
COVERED = 0.75  # share of the last window that must be recording


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
        """The voice of a recording, [256] float32 of length 1, its pauses left out.

        recording: see `speech`, whose errors it raises, too.
        """
        return self.embed(speech(recording, sample_rate))

    def embed(self, samples: np.ndarray) -> np.ndarray:
        """The voice in samples [S] float32 at 16 kHz, as they are: [256] float32 of length 1."""
        starts = window_starts(len(samples))
        missing = max(0, (starts[-1] + WINDOW) * HOP - len(samples))
        given = {"samples": np.pad(samples, (0, missing))[None], "frames": starts[:, None] + np.arange(WINDOW)}
        return self._model(given)["embedding"][0].copy()


def speech(recording: np.ndarray, sample_rate: int) -> np.ndarray:
    """What is said in a recording, without long pauses: [S] float32 at 16 kHz, at most LONGEST seconds.

    recording: [n], or [n, channels], whose mean is taken; floating point in -1..1 or int16. sample_rate: Hz. Raises
    ValueError for a recording that holds no sound, is silent, clipped or noisy, or has less than SHORTEST seconds of
    speech.
    """
    samples = _mono(recording)
    if not isinstance(sample_rate, int | np.integer) or sample_rate < LOWEST_RATE:
        raise ValueError(f"The sample rate is {sample_rate!r}. Record at {LOWEST_RATE} Hz or more.")
    if (seconds := len(samples) / sample_rate) < BLOCK / SAMPLE_RATE:
        raise ValueError(f"The recording lasts {seconds:.2f} seconds. Say {SHORTEST:g} or more.")
    if (share := (np.abs(samples) >= FULL).mean()) > CLIPPED:
        raise ValueError(f"The recording is clipped: {share:.1%} of it is at full scale. Turn the microphone down.")
    samples = resampled(samples, int(sample_rate))
    samples = samples[: len(samples) // BLOCK * BLOCK]
    levels = 10 * np.log10(np.square(samples.reshape(-1, BLOCK)).mean(1) + 1e-12)
    loud = np.percentile(levels, 95)
    if loud < QUIETEST:
        raise ValueError(f"The recording is silent ({loud:.0f} dB). Check the microphone and speak up.")
    quiet = np.percentile(levels[levels > -100], 5)  # zeros, as where a device mutes pauses, tell nothing of the noise
    if (clear := loud - quiet) < NOISE:
        raise ValueError(
            f"The recording is noisy: its speech is {clear:.0f} dB above the background, and {NOISE:g} are needed. "
            "Record in a quiet room, near the microphone."
        )
    spoken = levels > max(loud - SPEECH, quiet + ABOVE)
    if (seconds := spoken.sum() * BLOCK / SAMPLE_RATE) < SHORTEST:
        raise ValueError(f"The recording has {seconds:.1f} seconds of speech. Say {SHORTEST:g} or more.")
    kept = np.repeat(binary_dilation(spoken, iterations=PAUSE), BLOCK)
    samples = samples[kept][: int(LONGEST * SAMPLE_RATE)]
    return samples * np.float32(10 ** (LOUDNESS / 20) / np.sqrt(np.square(samples).mean()))


def resampled(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Samples [n] at another rate (Hz) as [S] float32 at 16 kHz."""
    ratio = Fraction(SAMPLE_RATE, sample_rate)
    return resample_poly(samples, ratio.numerator, ratio.denominator).astype(np.float32) if ratio != 1 else samples


def window_starts(count: int) -> np.ndarray:
    """The first frame of every window over so many samples, int64; a last one that is hardly covered is left out."""
    frames = count // HOP + 1
    starts = np.arange(0, max(1, frames - WINDOW + STEP + 1), STEP)
    return starts[:-1] if len(starts) > 1 and count / HOP - starts[-1] < COVERED * WINDOW else starts


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
