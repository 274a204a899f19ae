"""Every phoneme of the sentences has a pose; lips close, open and round when they should."""

import numpy as np
import pytest

from notebooks.wav2lip.data.speech import (
    HELD_OUT_VOICES,
    LEAD_S,
    POSES,
    VOICES,
    articulation,
    composed_voice,
    phoneme_class,
    phoneme_classes,
)
from utils.speech.espeak import PAUSE, Speech, synthesise
from utils.speech.sentences.english import HELD_OUT, TRAINING

FRAME = 1 / 25  # s


@pytest.fixture(scope="module")
def spoken() -> list[Speech]:
    return [synthesise(text, *VOICES[i % len(VOICES)]) for i, text in enumerate(TRAINING + HELD_OUT)]


def test_composed_voices_differ_from_each_other_and_from_the_held_out_one():
    voices = [composed_voice(np.random.default_rng(seed)) for seed in range(100)]
    assert len(set(voices)) == 100
    assert composed_voice(np.random.default_rng(3)) == voices[3]
    lines = [line for voice in voices for line in voice.splitlines()]
    assert 5 < sum(line.startswith("klatt") for line in lines) < 40
    assert "klatt 3" not in lines
    one, other = (synthesise(TRAINING[0], settings=voice) for voice in voices[:2])
    assert len(one.samples) != len(other.samples) or np.abs(one.samples - other.samples).max() > 0.1


def test_every_phone_of_the_sentences_has_a_pose(spoken):
    unknown = {symbol for one in spoken for symbol, _, _ in one.phonemes} - POSES.keys()
    assert not unknown, f"espeak-ng says {sorted(unknown)}: give each a pose in POSES, or write other sentences."


def test_the_sentences_show_what_lips_can_do(spoken):
    classes = [phoneme_class(symbol) for one in spoken[: len(TRAINING)] for symbol, _, _ in one.phonemes]
    assert all(classes.count(kind) > 150 for kind in ("closed", "round", "open"))


def test_held_out_is_held_out():
    assert len(TRAINING) == 60 and len(HELD_OUT) == 12
    assert len(set(TRAINING + HELD_OUT)) == 72
    assert len(set(VOICES + HELD_OUT_VOICES)) == len(VOICES) + len(HELD_OUT_VOICES) >= 16


def test_mouths_are_possible_ones(spoken):
    for one in spoken:
        mouth = articulation(one.phonemes, np.arange(-0.5, one.seconds + 0.5, FRAME))
        assert mouth.dtype == np.float32 and mouth.shape[1] == 3
        assert (mouth >= [0, -1, 0]).all() and (mouth <= 1).all()
        assert mouth[0] == pytest.approx([0.03, 0, 0]) == mouth[-1]  # at rest


def test_the_mouth_is_ahead_of_the_sound():
    phonemes = [(PAUSE, 0.0, 1.0), ("A:", 1.0, 1.4), (PAUSE, 1.4, 2.4)]
    times = np.arange(0, 2.4, 0.001)
    opening = articulation(phonemes, times)[:, 0]
    assert times[opening > 0.515].mean() == pytest.approx(1.2 - LEAD_S, abs=0.003)
    assert opening.max() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("stop", ["p", "b", "m"])
@pytest.mark.parametrize("length", [0.015, 0.12])
def test_lips_close_whatever_the_frames_time(stop, length):
    begin, end = 0.3, 0.3 + length
    phonemes = [("A:", 0.0, begin), (stop, begin, end), ("A:", end, end + 0.3)]
    middle = (begin + end) / 2 - LEAD_S
    for first in np.linspace(0, FRAME, 9):
        opening = articulation(phonemes, np.arange(first, end + 0.2, FRAME))[:, 0]
        assert opening.min() < 1e-3
        assert opening.max() > 0.95
    before, after = articulation(phonemes, np.array([middle - 0.15, middle + 0.15]))[:, 0]
    assert min(before, after) > 0.9


def test_f_leaves_a_slit_and_does_not_open_closed_lips_beside_it():
    phonemes = [("a", 0.0, 0.3), ("f", 0.3, 0.4), ("a", 0.4, 0.7), ("m", 0.7, 0.72), ("v", 0.72, 0.9), ("a", 0.9, 1.2)]
    times = np.array([0.35, 0.71, 0.81]) - LEAD_S
    assert articulation(phonemes, times)[:, 0] == pytest.approx([0.06, 0.0, 0.06], abs=0.01)


def test_diphthongs_move():
    early, late = articulation([("aU", 0.0, 0.4)], np.array([0.1, 0.3]) - LEAD_S)
    assert early == pytest.approx(POSES["aU"][0]) and late == pytest.approx(POSES["aU"][1])


@pytest.mark.parametrize(
    ("symbol", "kind"),
    [
        ("p", "closed"),
        ("m", "closed"),
        ("f", "other"),
        ("w", "round"),
        ("oU", "round"),
        ("A:", "open"),
        ("aU", "other"),
    ],
)
def test_phone_class(symbol, kind):
    assert phoneme_class(symbol) == kind


def test_classes_of_frames():
    phonemes = [("m", 0.0, 0.1), ("A:", 0.1, 0.2), ("w", 0.2, 0.3)]
    times = np.array([-0.01, 0.0, 0.05, 0.15, 0.25, 0.3]) - LEAD_S
    assert phoneme_classes(phonemes, times) == ["other", "closed", "closed", "open", "round", "other"]


def test_an_unknown_phone_is_refused():
    phonemes = [("y:", 0.0, 0.1)]
    for act in (phoneme_class, lambda symbol: articulation(phonemes, np.zeros(1))):
        with pytest.raises(ValueError, match="'y:' has no pose"):
            act("y:")
    with pytest.raises(ValueError, match="no phonemes"):
        articulation([], np.zeros(1))
