"""The spelling for the teacher has letters for every symbol; training sentences cover the syllables."""

import pytest

from notebooks.sambert_hifigan import data
from notebooks.sambert_hifigan.pipeline.frontend import Frontend, standard_tables
from notebooks.sambert_hifigan.pipeline.mandarin import Syllable
from utils.speech import kokoro_teacher
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
def test_a_syllable_has_letters_for_initial_and_final(pinyin, tone, letters):
    assert data.syllable_spelling(Syllable("x", pinyin, tone)) == letters


def test_a_syllable_that_mandarin_does_not_have_is_refused():
    with pytest.raises(ValueError, match="'bix'"):
        data.syllable_spelling(Syllable("x", "bix", 1))


def test_every_symbol_has_its_letters_and_the_tones_are_those_in_speech(frontend):
    arrows = {"tone1": "→", "tone2": "↗", "tone3": "↓", "tone4": "↘", "tone5": ""}
    for text in mandarin.HELD_OUT:
        symbols, groups = frontend.symbols(text), data.kokoro_spelling(frontend.read(text))
        assert len(symbols) == len(groups)
        for symbol, letters in zip(symbols, groups, strict=True):
            if symbol.sy.startswith("#"):
                assert letters == kokoro_teacher.BREAKS[symbol.sy]
            elif symbol.syllable_flag == "s_end":
                assert "".join(x for x in letters if x in "→↗↓↘") == arrows[symbol.tone]


def test_words_in_a_foot_are_apart_and_feet_have_a_symbol_for_it(frontend):
    assert "".join(data.kokoro_spelling(frontend.read("我们好，走吧。"))) == "wo↓mən xau↓, ʦou↓ pa."


def test_training_sentences_cover_the_syllables_and_leave_out_the_held_out(frontend):
    texts = data.training_sentences(frontend, 1600)
    assert len(set(texts)) == 1600 and not set(texts) & set(mandarin.HELD_OUT)
    assert texts[:100] == data.training_sentences(frontend, 100)

    def syllables(texts):
        feet = (foot for text in texts for phrase, _ in frontend.read(text) for foot in phrase)
        return {(syllable.pinyin, syllable.tone) for foot in feet for word in foot for syllable in word}

    known = syllables(texts)
    assert len(known) > 1000 and len(syllables(mandarin.HELD_OUT) - known) <= 1
