"""Mandarin text to the initials and finals that GPT-SoVITS knows; the folder `mandarin` reads it.

Every character has two phonemes, an initial and a final with its tone. A syllable without a consonant has the initial w
or y, or the opening of its vowel (AA, EE, OO). A 儿 that colours the syllable before it is a syllable with its tone.
"""

from __future__ import annotations

import re

from . import mandarin
from .text import PAUSES


def normalise(text: str) -> str:
    """What is said: characters, Latin words as they are, and the marks , . ! ? - … for pauses.

    Numbers and symbols become characters, but digits after Latin letters stay (H100).
    """
    return mandarin.normalise(text).replace("—", "-")


class Mandarin:
    """Reads Mandarin. Construction reads the dictionary of words, about a second."""

    def __init__(self) -> None:
        self.reader = mandarin.Reader()

    def phones(self, text: str) -> tuple[list[str], list[int]]:
        """The phonemes of a normalised text without Latin letters, and how many of them each of its characters has."""
        phonemes: list[str] = []
        counts: list[int] = []
        for run in re.findall(f"[{PAUSES}]|[^{PAUSES}]+", text):
            spoken = [run] if run in PAUSES else [x for pinyin in self.pinyin(run) for x in symbols(pinyin)]
            phonemes += spoken
            counts += [len(spoken) // len(run)] * len(run)
        return phonemes, counts

    def pinyin(self, text: str) -> list[str]:
        """The syllable of every character as it is said, with its tone, v for ü; text: characters and nothing else."""
        syllables: list[str] = []
        for syllable in (syllable for foot in self.reader.read(text) for word in foot for syllable in word):
            if len(syllable.text) == 2:  # coloured by 儿
                syllables += [f"{syllable.pinyin.removesuffix('r')}{syllable.tone}", f"er{syllable.tone}"]
            elif syllable.text:  # what a character has beyond its first syllable is left out
                syllables.append(f"{syllable.pinyin}{syllable.tone}")
        return syllables


def symbols(pinyin: str) -> tuple[str, str]:
    """Initial and final of a syllable with its tone: "zhong1" is zh, ong1; "ai4" AA, ai4; "yan2" y, En2."""
    syllable, tone = pinyin[:-1], pinyin[-1]
    initial, final = re.fullmatch("(zh|ch|sh|[bpmfdtnlgkhjqxrzcsyw]?)(.+)", syllable).groups()
    if final == "i" and initial in ("z", "c", "s", "zh", "ch", "sh", "r"):
        final = "i0" if len(initial) == 1 and initial != "r" else "ir"
    elif initial == "y":
        final = {"an": "En", "e": "E"}.get(final, final)
    return initial or final[0].upper() * 2, final + tone
