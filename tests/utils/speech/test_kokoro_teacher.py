"""The teacher says what the front end reads: letters for every symbol, frames for every symbol; what is said at all."""

import numpy as np
import pytest

from notebooks.sambert_hifigan.pipeline.frontend import Frontend, standard_tables
from notebooks.sambert_hifigan.pipeline.readings import Syllable
from utils.speech import kokoro_teacher
from utils.speech.kokoro_teacher import HOP, spelled
from utils.speech.sentences import mandarin


@pytest.fixture(scope="module")
def frontend() -> Frontend:
    return Frontend(standard_tables(["Anna"]))


@pytest.mark.parametrize(
    "pinyin, tone, letters",
    [
        ("zhi", 1, ("ꭧ", "ɨ→")),
        ("xve", 2, ("ɕ", "ɥe↗")),
        ("jvn", 1, ("ʨ", "y→n")),
        ("lv", 4, ("l", "y↘")),
        ("dui", 4, ("t", "wei↘")),
        ("bo", 1, ("p", "wo→")),
        ("yi", 1, ("", "i→")),
        ("yv", 3, ("", "y↓")),
        ("yvan", 2, ("ɥ", "ɛ↗n")),
        ("yan", 4, ("j", "ɛ↘n")),
        ("you", 3, ("j", "ou↓")),
        ("yong", 4, ("j", "ʊ↘ŋ")),
        ("ying", 2, ("", "i↗ŋ")),
        ("wu", 3, ("", "u↓")),
        ("wen", 4, ("w", "ə↘n")),
        ("wo", 3, ("w", "o↓")),
        ("an", 1, ("", "a→n")),
        ("er", 4, ("", "ɚ↘")),
        ("huar", 1, ("x", "wa→ɻ")),
        ("de", 5, ("t", "ɤ")),
    ],
)
def test_syllables_are_spelled_in_two_phones(pinyin, tone, letters):
    assert kokoro_teacher._sounds(Syllable("x", pinyin, tone)) == letters


def test_a_syllable_that_mandarin_does_not_have_is_refused():
    with pytest.raises(ValueError, match="'bix'"):
        kokoro_teacher._sounds(Syllable("x", "bix", 1))


def test_every_symbol_has_its_letters_and_the_tones_are_those_in_speech(frontend):
    arrows = {"tone1": "→", "tone2": "↗", "tone3": "↓", "tone4": "↘", "tone5": ""}
    for text in mandarin.HELD_OUT:
        symbols, groups = frontend.symbols(text), spelled(frontend.read(text))
        assert len(symbols) == len(groups)
        for symbol, letters in zip(symbols, groups, strict=True):
            if symbol.sy.startswith("#"):
                assert letters == kokoro_teacher.BREAKS[symbol.sy]
            elif symbol.syllable_flag == "s_end":
                assert "".join(x for x in letters if x in "→↗↓↘") == arrows[symbol.tone]


def test_words_in_a_foot_are_apart_and_feet_have_a_symbol_for_it(frontend):
    assert "".join(spelled(frontend.read("我们好，走吧。"))) == "wo↓mən xau↓, ʦou↓ pa."


def said(groups, durations, level, rate=kokoro_teacher.RATE):
    """`_utterance` of a sound that is a tone of the given levels, two frames for each of Kokoro's."""
    durations, level = np.array(durations), np.repeat(np.float32(level), 600)
    sound = level * np.sin(2 * np.pi * 240 * np.arange(len(level)) / 24000).astype(np.float32)
    pitch = np.where(np.repeat(level[::600] > 0, 2), 240, 12.0)
    return kokoro_teacher._utterance(groups, durations, pitch, sound, rate)


def test_frames_and_pitch_belong_to_the_samples():
    level = [0] * 8 + [0.2] * 12 + [0] * 14
    found = said(["t", "a→", "."], [10, 3, 4, 11, 2, 4], level)
    assert len(found.samples) == HOP * found.frames.sum() == HOP * len(found.f0)
    assert found.frames.tolist() == [6, 18, kokoro_teacher.TAIL]  # the vowel's silence went to the pause
    assert np.flatnonzero(found.f0).tolist() == list(range(24)) and set(found.f0[:24]) == {240}
    loud = np.sqrt(np.square(found.samples.reshape(-1, HOP)).mean(1))
    assert loud[1:23].mean() == pytest.approx(kokoro_teacher.LOUDNESS, rel=0.05)
    assert loud[0] > 0.5 * kokoro_teacher.LOUDNESS and loud[26:].max() < 1e-3


def test_another_rate_has_more_samples_of_the_same_sound():
    given = ["t", "a→", "."], [10, 3, 4, 11, 2, 4], [0] * 8 + [0.2] * 12 + [0] * 14
    known, found = said(*given), said(*given, rate=32000)
    assert found.frames.tolist() == known.frames.tolist() and np.array_equal(found.f0, known.f0)
    assert len(found.samples) == 2 * len(known.samples)
    assert np.abs(found.samples[::2] - known.samples)[HOP:-HOP].max() < 0.02 * np.abs(known.samples).max()


def test_an_initial_without_letters_shares_its_final():
    found = said(["", "i→", "."], [4, 3, 3, 5, 5], [0] * 2 + [0.2] * 6 + [0] * 12)
    assert found.frames.tolist() == [4, 8, kokoro_teacher.TAIL]


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


def test_training_sentences_cover_the_syllables_and_leave_out_the_held_out(frontend):
    texts = mandarin.training_sentences(frontend, 1600)
    assert len(set(texts)) == 1600 and not set(texts) & set(mandarin.HELD_OUT)
    assert texts[:100] == mandarin.training_sentences(frontend, 100)

    def syllables(texts):
        feet = (foot for text in texts for phrase, _ in frontend.read(text) for foot in phrase)
        return {(syllable.pinyin, syllable.tone) for foot in feet for word in foot for syllable in word}

    known = syllables(texts)
    assert len(known) > 1000 and len(syllables(mandarin.HELD_OUT) - known) <= 1
