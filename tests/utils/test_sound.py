"""What a notebook plays is small, has its name beside it, and sounds like what was given."""

import re
from base64 import b64decode
from io import BytesIO

import av
import numpy as np

from utils import sound


def test_sounds_are_kept_small_and_can_be_heard():
    samples = (0.3 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)).astype(np.float32)
    shown = sound.players({"a <b>": samples, "loud": 9 * samples}, 16_000).data
    assert "<td>a &lt;b&gt;</td>" in shown and shown.count("<audio") == 2 and len(shown) < 12_000
    for data in re.findall('base64,([^"]+)', shown):
        with av.open(BytesIO(b64decode(data))) as container:
            heard = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
        assert abs(len(heard) - 16_000) < 1200
        assert np.abs(np.fft.rfft(heard[4000:12_000])).argmax() == 220  # bins of 2 Hz
        assert np.abs(heard).max() < 1.2  # what is too loud is clipped, and does not turn over
