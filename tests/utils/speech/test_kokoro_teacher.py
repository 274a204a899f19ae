"""The teacher says what the front end reads: letters for every symbol, frames for every symbol; what is said at all."""

import numpy as np
import pytest

from utils.speech import kokoro_teacher
from utils.speech.kokoro_teacher import HOP


def said(groups, durations, level, rate=kokoro_teacher.SAMPLE_RATE_HZ):
    """`_utterance` of a sound that is a tone of the given levels, two frames for each of Kokoro's."""
    durations, level = np.array(durations), np.repeat(np.float32(level), 600)
    sound = level * np.sin(2 * np.pi * 240 * np.arange(len(level)) / 24000).astype(np.float32)
    pitch = np.where(np.repeat(level[::600] > 0, 2), 240, 12.0)
    return kokoro_teacher._utterance(groups, durations, pitch, sound, rate)


def test_frames_and_pitch_belong_to_the_samples():
    level = [0] * 8 + [0.2] * 12 + [0] * 14
    found = said(["t", "a→", "."], [10, 3, 4, 11, 2, 4], level)
    assert len(found.samples) == HOP * found.frames.sum() == HOP * len(found.f0)
    assert found.frames.tolist() == [6, 18, kokoro_teacher.TAIL_FRAMES]  # the vowel's silence went to the pause
    assert np.flatnonzero(found.f0).tolist() == list(range(24)) and set(found.f0[:24]) == {240}
    loud = np.sqrt(np.square(found.samples.reshape(-1, HOP)).mean(1))
    assert loud[1:23].mean() == pytest.approx(kokoro_teacher.VOICED_RMS, rel=0.05)
    assert loud[0] > 0.5 * kokoro_teacher.VOICED_RMS and loud[26:].max() < 1e-3


def test_another_rate_has_more_samples_of_the_same_sound():
    given = ["t", "a→", "."], [10, 3, 4, 11, 2, 4], [0] * 8 + [0.2] * 12 + [0] * 14
    known, found = said(*given), said(*given, rate=32000)
    assert found.frames.tolist() == known.frames.tolist() and np.array_equal(found.f0, known.f0)
    assert len(found.samples) == 2 * len(known.samples)
    assert np.abs(found.samples[::2] - known.samples)[HOP:-HOP].max() < 0.02 * np.abs(known.samples).max()


def test_an_initial_without_letters_shares_its_final():
    found = said(["", "i→", "."], [4, 3, 3, 5, 5], [0] * 2 + [0.2] * 6 + [0] * 12)
    assert found.frames.tolist() == [4, 8, kokoro_teacher.TAIL_FRAMES]


def test_a_pause_inside_keeps_all_its_silence():
    level = [0] * 3 + [0.2] * 6 + [0] * 8 + [0.2] * 8
    found = said(["t", "a→", ", ", "t", "a", "."], [5, 2, 2, 6, 1, 1, 2, 4, 1, 1], level)
    assert found.frames.tolist()[:3] == [4, 8, 12]


def test_only_what_repeats_at_its_pitch_has_voice():
    rng = np.random.default_rng(0)
    tone = np.sign(np.sin(2 * np.pi * 200 * np.arange(8000) / 16000))
    samples = np.concatenate([tone, rng.standard_normal(8000)]).astype(np.float32)
    found = kokoro_teacher._periodic(samples, np.full(80, 200.0))
    assert found[3:37].all() and not found[43:].any()
    assert not kokoro_teacher._periodic(samples, np.full(80, 15.0)).any()
