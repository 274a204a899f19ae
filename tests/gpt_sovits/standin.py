"""Stands in for the front end, whose phones are more than the small networks know: characters are phones."""

import re
from itertools import groupby
from typing import NamedTuple

import numpy as np

LANGUAGES = ("en", "zh", "ja", "auto")


class Piece(NamedTuple):
    language: str
    text: str
    phones: np.ndarray
    word2ph: np.ndarray | None


class Frontend:
    """A Chinese character has two phones, every other sign one; spaces have none."""

    def __init__(self, version: str) -> None:
        self.version = version

    def pieces(self, text: str, language: str) -> list[Piece]:
        if language not in LANGUAGES:
            raise ValueError(f"Language {language!r} is not known.")
        if "☃" in text:
            raise ValueError("Nobody can say ☃.")
        found = []
        for latin, run in groupby(text.replace(" ", ""), str.isascii):
            run = "".join(run)
            word2ph = np.array([1 + (x.isalpha() and not latin) for x in run])
            phones = [(ord(x) + 7 * i) % 40 for x, count in zip(run, word2ph, strict=True) for i in range(count)]
            found.append(Piece("en" if latin else "zh", run, np.int64(phones), None if latin else word2ph))
        return found


def split(text: str, how: str = "sentences") -> list[str]:
    if how not in ("sentences", "none"):
        raise ValueError(f"Text is not cut by {how!r}.")
    return re.findall(r"[^.。]+[.。]*|[.。]+", text) if how == "sentences" else [text]
