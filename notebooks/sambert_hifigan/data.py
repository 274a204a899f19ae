"""Sentences for training and evaluation, and their spelling for the teacher (`utils.speech.kokoro_teacher`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from notebooks.sambert_hifigan.pipeline.frontend import Frontend, initial_and_final
from notebooks.sambert_hifigan.pipeline.mandarin import Foot, Syllable
from utils.speech.kokoro_teacher import BREAKS, FINALS, GLIDES, INITIALS, TONES
from utils.speech.sentences import mandarin
from utils.speech.sentences.mandarin import HELD_OUT

GLIDE_INITIALS = {"y": "i", "w": "u"}  # initials in spelling only, and the vowel that a final has without them
VOWEL_INITIALS = ("ga", "ge", "go")  # initials in the table of symbols for syllables that begin with a vowel


class Trial(NamedTuple):
    """A sentence to synthesize, and its voice."""

    text: str
    speaker: str


def trials(speakers: Sequence[str], count: int = len(HELD_OUT)) -> list[Trial]:
    """The first `count` held-out sentences, with all voices in turn."""
    return [Trial(text, speakers[i % len(speakers)]) for i, text in enumerate(HELD_OUT[:count])]


def training_sentences(frontend: Frontend, count: int, seed: int = 0) -> list[str]:
    """Different sentences, none of them held out, as a function of the seed."""

    def syllables(word: str) -> set[tuple[str, int]]:
        feet = frontend.reader.read(word)
        return {(syllable.pinyin, syllable.tone) for foot in feet for word in foot for syllable in word}

    return mandarin.training_sentences(syllables, count, seed)


def kokoro_spelling(phrases: list[tuple[list[Foot], str]]) -> list[str]:
    """The letters of Kokoro for each symbol of a sentence; "" for an initial without a sound of its own.

    phrases: of `Frontend.read`. Raises ValueError for a syllable that Mandarin does not have.
    """
    groups: list[str] = []
    for feet, pause in phrases:
        for i, foot in enumerate(feet):
            if i:
                groups.append(BREAKS["#1"])
            for j, word in enumerate(foot):
                if j:
                    groups[-1] += " "
                for syllable in word:
                    groups += syllable_spelling(syllable)
        groups.append(BREAKS[pause])
    return groups


def syllable_spelling(syllable: Syllable) -> tuple[str, str]:
    """The letters of Kokoro for initial and final of a syllable."""
    initial, final = (symbol.removesuffix("_c") for symbol in initial_and_final(syllable.pinyin))
    coloured = "ɻ" if final.endswith("r") and final != "er" else ""
    final = final.removesuffix("r") if coloured else final
    if initial in GLIDE_INITIALS and final[0] not in "iuv":  # ya is ia and wei is uei, but yi is i and yu is ü
        final = GLIDE_INITIALS[initial] + final
    if final not in FINALS or initial not in (*INITIALS, *GLIDE_INITIALS, *VOWEL_INITIALS):
        raise ValueError(f"{syllable.text} is read {syllable.pinyin!r}, which Mandarin does not have. Leave it out.")
    vowels = "ɔ0" if (initial, final) == ("go", "o") else FINALS[final]
    vowels = vowels.replace("0", TONES[syllable.tone])
    if initial in GLIDE_INITIALS and vowels[0] in GLIDES:
        return vowels[0], vowels[1:] + coloured
    return INITIALS.get(initial, ""), vowels + coloured
