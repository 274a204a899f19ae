"""Text in English, Mandarin, Japanese or a mixture of them to the phoneme ids that GPT-SoVITS reads.

A text is cut into pieces of one language, for each has phonemes of its own. Chinese pieces keep their characters, too,
which BERT reads. `text`, `english`, `mandarin_phonemes` with the folder `mandarin`, `japanese` and `symbols.json`
belong to this file. Nothing is downloaded.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from . import english, mandarin_phonemes
from .constants import VERSIONS
from .mandarin import readable
from .text import ABBREVIATIONS, PAUSES, SYMBOL_NAMES, tidy, unaccented

LANGUAGES = ("en", "zh", "ja", "auto")  # in zh and ja Latin words are read as English; auto tells by the script
MIN_PHONEMES = 6  # v2 puts a full stop before what has fewer
MAX_LETTERS = 300  # of a piece of `split`; a Chinese character or kana takes the time of three letters
HOW = {  # how `split` cuts, as a name and in words
    "sentences": "after every sentence",
    "none": "not at all, but for what is too long",
    "four": "after every four clauses",
    "fifty": "after a clause when 50 characters have come together",
    "chinese_stops": "after every Chinese full stop 。",
    "english_stops": "after every English full stop .",
    "punctuation": "after every punctuation mark",
}
_CLOSING = r"[\"'”’）)」』】》]*\s*"
_SENTENCE = re.compile(rf"(?:[。！？!?…\n]|(?<!\d)\.(?!\w)|(?<=\d)\.(?=\s|$))+{_CLOSING}")
_CLAUSE = re.compile(rf"(?:[。！？!?…\n、，；：;:—]|,(?!\d)|(?<!\d)\.(?!\w)|(?<=\d)[.](?=\s|$))+{_CLOSING}")
_LATIN = r"[A-Za-z][A-Za-z0-9]*(?:[ '.&+@-]+[A-Za-z0-9]+)*"


class Piece(NamedTuple):
    """A part of a text in one language."""

    language: str  # "en", "zh" or "ja"
    text: str  # normalised; for zh exactly the characters that BERT reads
    phones: np.ndarray  # [P] int64, ids of the phonemes
    word2ph: np.ndarray | None  # for zh [len(text)] int64, how many phonemes each character has; their sum is P


class Frontend:
    """Reads text for a checkpoint of one version. The first text of each language takes some seconds."""

    def __init__(self, version: str = "v2") -> None:
        if version not in VERSIONS:
            raise ValueError(f"Version {version!r} is not known. Choose one of {', '.join(VERSIONS)}.")
        self.version = version
        table = json.loads(Path(__file__).with_name("symbols.json").read_text(encoding="utf-8"))
        self.symbols: list[str] = table[: VERSIONS[version]]  # their indices are the ids
        self.ids = {symbol: i for i, symbol in enumerate(self.symbols)}

    def pieces(self, text: str, language: str = "en") -> list[Piece]:
        """The pieces of a text, in order, with the phonemes of each; the last one ends with a mark.

        language: one of LANGUAGES. With "auto" Chinese characters are Mandarin, but Japanese in a sentence with kana.
        There, a run of characters that are not all Japanese ones is Mandarin still. Emoji and other symbols without a
        name are left out. Raises ValueError for a text without words, for another language, and for characters that the
        language lacks.
        """
        if language not in LANGUAGES:
            raise ValueError(f"Language {language!r} is not known. Choose one of {', '.join(LANGUAGES)}.")
        text = _compatible(text)
        _check(text, language)
        parts = _closed(_merged(list(self._parts(text, language))))
        pieces = [piece for part in parts if len((piece := self._piece(*part)).phones)]
        if all(self.symbols[phone] in (*PAUSES, "UNK") for piece in pieces for phone in piece.phones):
            raise ValueError(f"There is nothing to say in {text[:20]!r}: give a text with words.")
        if sum(len(piece.phones) for piece in pieces) < MIN_PHONEMES and self.version != "v1":
            pieces[0] = self._piece(pieces[0].language, "." + pieces[0].text)
        return pieces

    def _parts(self, text: str, language: str) -> Iterator[tuple[str, str]]:
        """Language and normalised text of every run of one script."""
        known = "en" if language == "auto" else language
        for sentence in _cut(text, _SENTENCE):
            host = known = _language(sentence, language, known)
            if host == "en":
                yield "en", english.normalise(sentence) + " "
                continue
            sentence = (mandarin_phonemes if host == "zh" else _japanese()).normalise(sentence)
            for run in re.findall(rf"{_LATIN}|(?:(?!{_LATIN}).)+", sentence, re.DOTALL):
                if re.match("[A-Za-z]", run) and (host == "zh" or len(run) > 1):
                    yield "en", english.normalise(run) + " "
                elif host == "ja" and language == "auto":
                    yield from self._chinese_in_japanese(run)
                else:
                    yield host, _pronounced(run, host)

    def _chinese_in_japanese(self, run: str) -> Iterator[tuple[str, str]]:
        """Language and text of the parts of a run in a sentence with kana: Chinese where not all are Japanese."""
        for part in re.findall(r"[\u3400-\u9fff]+|[^\u3400-\u9fff]+", run):
            chinese = not all(map(_japanese().readable, part)) and not any(map(_kana, part))
            yield ("zh" if chinese else "ja"), _pronounced(part, "zh" if chinese else "ja")

    def _piece(self, language: str, text: str) -> Piece:
        word2ph = None
        if language == "zh":
            symbols, counts = _mandarin().phones(text)
            word2ph = np.array(counts, np.int64)
        elif language == "ja":
            symbols = _japanese().phones(text, pitch=self.version != "v1")
        else:
            symbols = _english().phones(text)
        return Piece(language, text, np.array([self.ids[symbol] for symbol in symbols], np.int64), word2ph)


def split(text: str, how: str = "sentences") -> list[str]:
    """A text cut into pieces that are synthesized one after another; what has no letters or digits is dropped.

    how: one of HOW. A piece of more than MAX_LETTERS letters is cut after a mark, else between words, else anywhere; a
    Chinese character or kana counts as three letters. Raises ValueError for another way to cut.
    """
    if how not in HOW:
        raise ValueError(f"{how!r} is no way to cut a text. Choose one of {', '.join(HOW)}.")
    if how == "none":
        pieces = [text]
    elif how == "sentences":
        pieces = _cut(text, _SENTENCE)
    elif how == "chinese_stops":
        pieces = _cut(text, re.compile("。+" + _CLOSING))
    elif how == "english_stops":
        pieces = _cut(text, re.compile(rf"(?<!\d)\.+(?!\w){_CLOSING}|(?<=\d)\.(?=\s|$){_CLOSING}"))
    else:
        pieces = _cut(text, _CLAUSE)
        if how == "four":
            pieces = ["".join(pieces[i : i + 4]) for i in range(0, len(pieces), 4)]
        elif how == "fifty":
            pieces = _gathered(pieces, 50)
    return [part for piece in pieces for part in _short(piece.strip()) if any(map(str.isalnum, part))]


# --- the details ------------------------------------------------------------------------------------------------


@cache
def _english() -> english.English:
    return english.English()


@cache
def _mandarin() -> mandarin_phonemes.Mandarin:
    return mandarin_phonemes.Mandarin()


@cache
def _japanese() -> ModuleType:
    from . import japanese  # its package takes seconds to import

    return japanese


def _cut(text: str, end: re.Pattern[str]) -> list[str]:
    """The text cut after every match, but not after an abbreviation; nothing is lost."""
    pieces, start = [], 0
    for match in end.finditer(text):
        word = re.search(r"[A-Za-z.]+$", text[max(0, match.start() - 20) : match.start()])
        if match[0].strip() == "." and word and _abbreviated(word[0], text[match.end() : match.end() + 1]):
            continue
        pieces.append(text[start : match.end()])
        start = match.end()
    return [piece for piece in [*pieces, text[start:]] if piece]


def _abbreviated(word: str, after: str) -> bool:
    """Whether a full stop after the word belongs to it: a title, a month, an initial."""
    if re.fullmatch("(?:[A-Za-z][.])*[A-Z]", word) and word != "I":
        return after.islower() or len(word) == 1
    if word == "No":
        return after.isdigit()
    ends = ("a.m", "p.m", "etc", "Inc", "Ltd", "Corp", "Jr", "Sr")  # the full stop may be the sentence's too
    return word in ABBREVIATIONS and bool(after) and (word not in ends or after.islower() or after in ",;:")


def _gathered(clauses: list[str], length: int) -> list[str]:
    """Clauses put together until they have more than `length` characters; a short rest goes to what is before it."""
    pieces = [""]
    for clause in clauses:
        pieces[-1] += clause
        if len(pieces[-1]) > length:
            pieces.append("")
    rest = pieces.pop()
    return [*pieces[:-1], pieces[-1] + rest] if pieces else [rest]


def _short(piece: str) -> Iterator[str]:
    """The piece in parts of at most MAX_LETTERS letters."""
    while True:
        sizes = np.cumsum([3 if _wide(x) else 1 for x in piece])
        fit = int(np.searchsorted(sizes, MAX_LETTERS, side="right"))
        if fit == len(piece):
            yield piece
            return
        clauses = [match.end() for match in _CLAUSE.finditer(piece[:fit])]
        words = [match.end() for match in re.finditer(r"\s+", piece[:fit])]
        cut = (clauses or words or [fit])[-1]
        yield piece[:cut].strip()
        piece = piece[cut:].strip()


def _compatible(text: str) -> str:
    """The compatibility forms of full-width and other characters (NFKC), without what has no width."""
    text = "".join(x if x in "²³…" else unicodedata.normalize("NFKC", x) for x in unicodedata.normalize("NFC", text))
    return re.sub("[\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff\u00ad]", "", re.sub("[\r\u2028\u2029]", "\n", text))


def _check(text: str, language: str) -> None:
    """Raises ValueError for the first character that the language does not have."""
    for x in text:
        if x.isascii() or unicodedata.category(x)[0] not in "LN" or x in "²³":
            continue
        if all(y.isascii() for y in unaccented(x)) or x in SYMBOL_NAMES:
            continue
        kana, chinese = _kana(x), readable(x)
        if (kana and language in ("ja", "auto")) or (chinese and not kana and language != "en"):
            continue
        name = unicodedata.name(x, f"U+{ord(x):04X}")
        way = "Take the language 'auto'" if kana or chinese else "Write it in Latin letters or leave it out"
        raise ValueError(f"The text has {x!r} ({name}), which cannot be said with language {language!r}. {way}.")


def _kana(x: str) -> bool:
    return x == "々" or ("\u3041" <= x <= "\u30ff" and x not in "・゠")


def _wide(x: str) -> bool:
    return _kana(x) or readable(x)


def _language(sentence: str, language: str, before: str) -> str:
    """Of a sentence; where it has neither words nor characters, as of the one before."""
    if language == "auto":
        if any(map(_kana, sentence)):
            return "ja"
        language = "zh"
    if any(map(_wide, sentence)):
        return language
    return "en" if re.search("[A-Za-z]", unaccented(sentence)) else before


def _pronounced(run: str, language: str) -> str:
    """The characters of a run that the language pronounces, and marks."""
    if language == "zh":
        return "".join(x for x in run if readable(x) or x in PAUSES)
    return "".join(x for x in run if _wide(x) or x in PAUSES or (x.isascii() and x.isalnum()))


def _merged(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of one language as one; marks belong to the part before them and do not begin a text."""
    merged: list[tuple[str, str]] = []
    for language, text in parts:
        words = text.lstrip(PAUSES + " ")
        if merged and len(words) < len(text):
            merged[-1] = (merged[-1][0], merged[-1][1] + text[: len(text) - len(words)])
        if words and merged and merged[-1][0] == language:
            merged[-1] = (language, merged[-1][1] + words)
        elif words:
            merged.append((language, words))
    return [(language, tidy(text) if language == "en" else tidy(text).replace(" ", "")) for language, text in merged]


def _closed(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The last part ends with a mark, as what the models were trained with."""
    if not parts:
        return parts
    language, text = parts[-1]
    return [*parts[:-1], (language, text if text[-1] in PAUSES else text + ".")]
