"""Chinese text to syllables: words by jieba, their readings by pypinyin's dictionary and the tables of `lexicon`.

The tables know what the dictionary lacks, and what the text around a character decides; `sandhi` changes the tones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pypinyin import Style, lazy_pinyin
from pypinyin.constants import PHRASES_DICT, PINYIN_DICT

from . import sandhi
from .lexicon import CONTEXT, FULL_IN_COMPOUNDS, FULL_WORDS, INSIDE, LETTERS, NEUTRAL, READINGS, SINGLE
from .segmentation import Segmenter
from .syllables import Foot, Word, syllables_of

MAX_PHRASE_CHARACTERS = max(map(len, PHRASES_DICT))
CONTEXT_CHARACTERS = 8  # before and after a word, which may decide its reading
ENCLITICS = set("的地得了着过们吗呢吧啊呀哇嘛么啦呗上下里中个")  # pronounced with the word before them


def readable(character: str) -> bool:
    """Whether it is a Chinese character with a reading."""
    return character >= "〇" and ord(character) in PINYIN_DICT


class Reader:
    """Reads phrases, which are normalised text without punctuation. Construction takes about a second."""

    def __init__(self) -> None:
        self.segmenter = Segmenter()
        self.segmenter.initialize()

    def read(self, phrase: str) -> list[Foot]:
        """The prosodic words of a phrase, whose characters must be `readable`, capital Latin letters or spaces."""
        words = sandhi.colour(list(self._readings(self.segmenter.words(phrase))))
        sandhi.one_and_not(words)
        sandhi.neutral(words)
        feet = _feet(words)
        sandhi.third_tones([[[self.segmenter.halves(word) for word in foot] for foot in feet]])
        return feet

    def _readings(self, words: list[str]) -> Iterator[Word]:
        phrase, end = "".join(words), 0
        for word in words:
            start, end = end, end + len(word)
            before = phrase[max(0, start - CONTEXT_CHARACTERS) : start]
            syllables = by_dictionary(word, before, phrase[end : end + CONTEXT_CHARACTERS])
            for place in _neutral_places(word):
                syllables[place].tone = 5
            yield syllables


def by_dictionary(word: str, before: str, after: str) -> Word:
    """The syllables of a word: the longest known phrase is read first. before, after: text that may decide readings."""
    syllables: Word = []
    alone, first = SINGLE.get(word), True
    while word:
        lengths = range(min(len(word), MAX_PHRASE_CHARACTERS), 1, -1)
        known = (word[:n] for n in lengths if word[:n] in READINGS or word[:n] in PHRASES_DICT)
        piece = next(known, word[0])
        rest = word[len(piece) :] + after
        inside = None if first else INSIDE.get(piece)
        reading = _in_context(piece, before, rest) or READINGS.get(piece) or LETTERS.get(piece) or alone or inside
        syllables += syllables_of(piece, reading.split() if reading else _pinyin(piece))
        before, word, first = before + piece, word[len(piece) :], False
    return syllables


def _in_context(piece: str, before: str, after: str) -> str | None:
    for first, then, reading in CONTEXT.get(piece, ()):
        if re.search(f"(?:{first})$", before) and re.match(then, after):
            return reading
    return None


def _pinyin(piece: str) -> list[str]:
    return lazy_pinyin([piece], style=Style.TONE3, neutral_tone_with_five=True)


def _neutral_places(word: str) -> list[int]:
    """Where a word has the second syllable of one of NEUTRAL: at the end of three characters (老朋友), but not of a
    kind of students (大学生), else in pairs from its beginning (朋友们). Idioms of the dictionary keep their tones."""
    if word.startswith(FULL_WORDS) or (len(word) > 3 and word in PHRASES_DICT):
        return []
    if len(word) == 3 and word[1:] in NEUTRAL and not word.endswith("学生"):
        return [2]
    kept = FULL_IN_COMPOUNDS if len(word) > 2 else ()
    pairs = {start: word[start : start + 2] for start in range(0, len(word) - 1, 2)}
    return [start + 1 for start, pair in pairs.items() if pair in NEUTRAL and pair not in kept]


def _feet(words: list[Word]) -> list[Foot]:
    """Group words into prosodic words of two syllables or more where possible, by a heuristic."""
    feet: list[Foot] = []
    for word in words:
        length = sum(map(len, feet[-1])) if feet else 2
        leans = (
            feet and len(word) == 1 and (word[0].text in ENCLITICS or feet[-1][-1][-1].text + word[0].text == "个人")
        )
        if feet and (length < 2 or leans):
            feet[-1].append(word)
        else:
            feet.append([word])
    if len(feet) > 1 and sum(map(len, feet[-1])) == 1 and sum(map(len, feet[-2])) < 4:
        feet[-2:] = [feet[-2] + feet[-1]]
    return feet
