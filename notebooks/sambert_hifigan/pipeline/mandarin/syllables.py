"""What a text is read as: syllables, in words, in prosodic words."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass
class Syllable:
    """A spoken syllable."""

    text: str  # the character, with a 儿 that only colours it ("花儿"), or a Latin letter
    pinyin: str  # without the tone, with "v" for ü, and with "r" at the end when er-coloured
    tone: int  # after tone sandhi: 1 to 4, or 5 for the neutral tone


Word = list[Syllable]
Foot = list[Word]  # a prosodic word: words pronounced without a pause


def syllables_of(text: str, pinyin: list[str]) -> Word:
    """The syllables of a text, whose readings end with their tones, as in "hao3"."""
    texts = text if len(text) == len(pinyin) else [text, *[""] * (len(pinyin) - 1)]  # the letter W is three syllables
    return [Syllable(one, _plain(reading[:-1]), int(reading[-1])) for one, reading in zip(texts, pinyin, strict=True)]


def _plain(syllable: str) -> str:
    """A syllable as it is pronounced: ü is v also after j, q, x and y, and interjections have a vowel."""
    syllable = {"hm": "heng", "hng": "heng", "m": "mu", "n": "en", "ng": "en", "ê": "ei"}.get(syllable, syllable)
    return re.sub("^([jqxy])u", r"\1v", syllable)
