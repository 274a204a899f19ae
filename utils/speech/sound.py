"""Sounds in files and notebooks: read at a sample rate, written as WAV, played as MP3 that the notebook keeps."""

from __future__ import annotations

import wave
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from io import BytesIO
from itertools import chain
from pathlib import Path

import av
import numpy as np
from IPython.display import HTML

BIT_RATE = 24_000  # of what a notebook keeps: 3 kB a second
HIGHEST, LEAST = 24_000, 32_000  # Hz that MP3 knows below so many bits a second


def players(sounds: Mapping[str, np.ndarray], sample_rate: int) -> HTML:
    """A table of players, each behind its name. sounds: [S] float32, what is beyond -1..1 is clipped."""
    rows = []
    for name, samples in sounds.items():
        data = b64encode(mp3(samples, sample_rate)).decode()
        player = f'<audio controls preload="metadata" src="data:audio/mpeg;base64,{data}"></audio>'
        rows.append(f"<tr><td>{escape(name)}</td><td>{player}</td></tr>")
    return HTML(f"<table>{''.join(rows)}</table>")


def mp3(samples: np.ndarray, sample_rate: int, bit_rate: int = BIT_RATE) -> bytes:
    """An MP3 file of one channel; samples as for `players`."""
    written = BytesIO()
    with av.open(written, "w", format="mp3") as container:
        rate = sample_rate if bit_rate >= LEAST else min(sample_rate, HIGHEST)  # PyAV resamples
        stream = container.add_stream("mp3", rate=rate, layout="mono")
        stream.bit_rate = bit_rate
        integers = (np.clip(samples, -1, 1) * 32767).round().astype(np.int16)
        frame = av.AudioFrame.from_ndarray(integers[None], format="s16p", layout="mono")
        frame.sample_rate = sample_rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return written.getvalue()


def read(path: str | Path, sample_rate: int, longest_s: float = float("inf")) -> np.ndarray:
    """The sound of an audio or video file, [S] float32: the mean of its channels, of at most `longest_s` seconds.

    Raises ValueError for a file that is missing, cannot be decoded, or holds no sound.
    """
    if not Path(path).is_file():
        raise ValueError(f"{path} does not exist. Correct its name.")
    pieces: list[np.ndarray] = [np.zeros(0, np.float32)]
    try:
        with av.open(f"file:{path}") as container:  # a colon in the name is no protocol
            if not container.streams.audio:
                raise ValueError(f"{path} holds no sound. Give a file that does.")
            resampler = av.AudioResampler("fltp", None, sample_rate)
            for decoded in chain(container.decode(audio=0), [None]):  # None: what the resampler still holds
                pieces += [frame.to_ndarray().mean(0) for frame in resampler.resample(decoded)]
                if sum(map(len, pieces)) >= longest_s * sample_rate:
                    break
    except av.FFmpegError as error:
        raise ValueError(
            f"{path} cannot be decoded ({error.strerror}): it is damaged or of an unknown format. Give another file."
        ) from error
    samples = np.concatenate(pieces)
    return samples if longest_s == float("inf") else samples[: round(longest_s * sample_rate)]


def write_wav(path: str | Path, samples: np.ndarray, sample_rate: int) -> None:
    """Write samples [S] as a WAV file of 16 bits and one channel; what is beyond -1..1 is clipped."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, sample_rate, 0, "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes())
