"""What a notebook plays is small, has its name beside it, and sounds like what was given."""

import re
from base64 import b64decode
from io import BytesIO

import av
import numpy as np
import pytest

from utils.speech import sound


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


def test_a_high_rate_is_lowered_where_mp3_would_need_more_bits_than_asked_for():
    samples = (0.3 * np.sin(2 * np.pi * 440 * np.arange(64_000) / 32_000)).astype(np.float32)
    for bit_rate, rate in ((24_000, 24_000), (48_000, 32_000)):
        data = sound.mp3(samples, 32_000, bit_rate)
        assert len(data) < 1.2 * 2 * bit_rate / 8
        with av.open(BytesIO(data)) as container:
            heard = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
            assert container.streams.audio[0].rate == rate
        assert abs(len(heard) - 2 * rate) < 0.1 * rate
        middle = heard[rate // 2 : rate // 2 + rate]  # a second: bins of 1 Hz
        assert abs(np.abs(np.fft.rfft(middle)).argmax() - 440) <= 1


def test_what_is_written_is_read_at_another_rate(tmp_path):
    tone = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000).astype(np.float32) / 2
    sound.write_wav(tmp_path / "tone.wav", tone, 16_000)
    assert np.abs(sound.read(tmp_path / "tone.wav", 16_000) - tone).max() < 1e-4
    assert len(sound.read(tmp_path / "tone.wav", 8_000)) == pytest.approx(8_000, abs=64)
    assert len(sound.read(tmp_path / "tone.wav", 8_000, longest_s=0.25)) == 2_000


def test_what_holds_no_sound_is_refused(tmp_path):
    (tmp_path / "text.wav").write_text("no sound", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be decoded"):
        sound.read(tmp_path / "text.wav", 16_000)
    with pytest.raises(ValueError, match="does not exist"):
        sound.read(tmp_path / "none.wav", 16_000)


def test_sounds_get_the_same_loudness_whatever_their_pauses():
    tone = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000).astype(np.float32)
    with_pause = np.concatenate([0.01 * tone, np.zeros(48_000, np.float32)])
    for samples in (tone, 0.03 * tone, with_pause):
        levelled = sound.same_loudness(samples, 16_000)[:16_000]
        assert 10 * np.log10((levelled**2).mean()) == pytest.approx(sound.LOUDNESS_DB, abs=0.1)
    assert not sound.same_loudness(np.zeros(100, np.float32), 16_000).any()


def test_peaks_are_not_clipped():
    spiky = 0.001 * np.ones(16_000, np.float32)
    spiky[::400] = 1  # -26 dB, which would need a gain of 2
    assert np.abs(sound.same_loudness(spiky, 16_000)).max() == pytest.approx(sound.MAX_PEAK)
