"""Short sounds in a notebook: players that keep what they play as MP3."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from io import BytesIO

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
