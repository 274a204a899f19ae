"""Sounds in files and notebooks: reads any format, writes WAV, and embeds MP3 players in a notebook."""

from __future__ import annotations

import wave
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from io import BytesIO
from itertools import chain
from pathlib import Path

import av
import numpy as np
from IPython.display import HTML

from utils import files

BIT_RATE = 24_000  # bits/s of players in a notebook: 3 kB of file for a second of sound
MPEG2_MAX_HZ = 24_000  # sample rate of MP3 at bit rates below MPEG1_MIN_BIT_RATE
MPEG1_MIN_BIT_RATE = 32_000  # bits/s
LOUDNESS_DB = -20.0  # of the speech parts of a sound, relative to full scale
SPEECH_DB = -30.0  # parts this far below the loudest one are pauses
PART_S, MAX_PEAK = 0.05, 0.97  # length of a part in seconds; largest sample


def players(sounds: Mapping[str, np.ndarray], sample_rate: int, bit_rate: int = BIT_RATE) -> HTML:
    """A table of players with their names.

    sounds: samples [S] float32; values beyond -1..1 are clipped. bit_rate: of each player in bits/s.
    """
    rows = []
    for name, samples in sounds.items():
        data = b64encode(mp3(samples, sample_rate, bit_rate)).decode()
        player = f'<audio controls preload="metadata" src="data:audio/mpeg;base64,{data}"></audio>'
        rows.append(f"<tr><td>{escape(name)}</td><td>{player}</td></tr>")
    return HTML(f"<table>{''.join(rows)}</table>")


def same_loudness(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Samples [S] scaled so that the speech in them, without pauses, has LOUDNESS_DB; silence stays as it is.

    A sound with high peaks stays quieter, so that nothing is clipped.
    """
    size = round(PART_S * sample_rate)
    parts = np.pad(samples, (0, -len(samples) % size)).reshape(-1, size).astype(np.float64)
    powers = (parts**2).mean(1)
    if not powers.max(initial=0):
        return samples
    speech = powers[powers > powers.max() * 10 ** (SPEECH_DB / 10)].mean()
    gain = min(10 ** (LOUDNESS_DB / 20) / speech**0.5, MAX_PEAK / np.abs(samples).max())
    return (gain * samples).astype(np.float32)


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Samples in -1..1 as int16; values beyond are clipped."""
    return (np.clip(samples, -1, 1) * 32767).round().astype(np.int16)


def mp3(samples: np.ndarray, sample_rate: int, bit_rate: int = BIT_RATE) -> bytes:
    """An MP3 file of one channel; samples as for `players`."""
    file = BytesIO()
    with av.open(file, "w", format="mp3") as container:
        rate = sample_rate if bit_rate >= MPEG1_MIN_BIT_RATE else min(sample_rate, MPEG2_MAX_HZ)  # PyAV resamples
        stream = container.add_stream("mp3", rate=rate, layout="mono")
        stream.bit_rate = bit_rate
        frame = av.AudioFrame.from_ndarray(to_int16(samples)[None], format="s16p", layout="mono")
        frame.sample_rate = sample_rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def read(path: str | Path, sample_rate: int, longest_s: float = float("inf")) -> np.ndarray:
    """The sound of an audio or video file, [S] float32: the mean of its channels.

    longest_s: the rest of a longer sound is left out. Raises ValueError for a file that is missing, damaged, or without
    sound.
    """
    if not Path(path).is_file():
        raise ValueError(f"{path} does not exist. Correct its name.")
    pieces: list[np.ndarray] = [np.zeros(0, np.float32)]
    try:
        with av.open(f"file:{path}") as container:  # "file:", so that a colon in the name does not name a protocol
            if not container.streams.audio:
                raise ValueError(f"{path} holds no sound. Give a file that does.")
            resampler = av.AudioResampler("fltp", None, sample_rate)
            for decoded in chain(container.decode(audio=0), [None]):  # None flushes the resampler
                pieces += [frame.to_ndarray().mean(0) for frame in resampler.resample(decoded)]
                if sum(map(len, pieces)) >= longest_s * sample_rate:
                    break
    except av.FFmpegError as error:
        raise ValueError(
            f"{path} cannot be decoded ({error.strerror}): it is damaged or of an unknown format. Give another file."
        ) from error
    samples = np.concatenate(pieces)
    return samples if longest_s == float("inf") else samples[: round(longest_s * sample_rate)]


def write_wav(path: str | Path, samples: np.ndarray | Iterable[np.ndarray], sample_rate: int) -> float:
    """Write samples [S], or pieces of them in order, to a WAV file of 16 bits and one channel.

    Values beyond -1..1 are clipped. The file appears once it is complete. Returns the duration in seconds.
    """
    pieces = [samples] if isinstance(samples, np.ndarray) else samples
    with files.replaced(Path(path)) as partial:
        with wave.open(str(partial), "wb") as file:
            file.setparams((1, 2, sample_rate, 0, "NONE", ""))
            for piece in pieces:
                file.writeframes(to_int16(piece).astype("<i2").tobytes())
            return file.getnframes() / sample_rate
