"""Sentences for training and for trials, and how the teacher (`utils.speech.kokoro_teacher`) spells what is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from notebooks.sambert_hifigan.pipeline.frontend import Frontend, phones
from notebooks.sambert_hifigan.pipeline.readings import Foot, Syllable
from utils.speech.kokoro_teacher import BREAKS, FINALS, GLIDES, INITIALS, TONES
from utils.speech.sentences import mandarin
from utils.speech.sentences.mandarin import HELD_OUT

WRITTEN = {"y": "i", "w": "u"}  # initials of the spelling only: what finals are without them
SILENT = ("ga", "ge", "go")  # initials of syllables that begin with their vowel


class Trial(NamedTuple):
    """A sentence and the voice that is to say it."""

    text: str
    speaker: str


def trials(speakers: Sequence[str], count: int = len(HELD_OUT)) -> list[Trial]:
    """So many held-out sentences, by all voices in turn."""
    return [Trial(text, speakers[i % len(speakers)]) for i, text in enumerate(HELD_OUT[:count])]


def training_sentences(frontend: Frontend, count: int, seed: int = 0) -> list[str]:
    """So many different sentences, none of them held out, the same for the same seed."""

    def syllables(word: str) -> set[tuple[str, int]]:
        return {(x.pinyin, x.tone) for foot in frontend.reader.read(word) for group in foot for x in group}

    return mandarin.training_sentences(syllables, count, seed)


def spelled(read: list[tuple[list[Foot], str]]) -> list[str]:
    """Kokoro's letters for each symbol of a sentence; "" for an initial that has no sound of its own.

    read: of `Frontend.read`. Raises ValueError for a syllable that Mandarin does not have.
    """
    groups: list[str] = []
    for feet, pause in read:
        for i, foot in enumerate(feet):
            if i:
                groups.append(BREAKS["#1"])
            for j, word in enumerate(foot):
                if j:
                    groups[-1] += " "
                for syllable in word:
                    groups += _sounds(syllable)
        groups.append(BREAKS[pause])
    return groups


def _sounds(syllable: Syllable) -> tuple[str, str]:
    """The letters of both phones."""
    initial, final = (phone.removesuffix("_c") for phone in phones(syllable.pinyin))
    coloured = "ɻ" if final.endswith("r") and final != "er" else ""
    final = final.removesuffix("r") if coloured else final
    if initial in WRITTEN and final[0] not in "iuv":  # ya is ia and wei is uei, but yi is i and yu is ü
        final = WRITTEN[initial] + final
    if final not in FINALS or initial not in (*INITIALS, *WRITTEN, *SILENT):
        raise ValueError(f"{syllable.text} is read {syllable.pinyin!r}, which Mandarin does not have. Leave it out.")
    vowels = ("ɔ0" if (initial, final) == ("go", "o") else FINALS[final]).replace("0", TONES[syllable.tone])
    if initial in WRITTEN and vowels[0] in GLIDES:
        return vowels[0], vowels[1:] + coloured
    return INITIALS.get(initial, ""), vowels + coloured
