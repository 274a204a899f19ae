"""Passages of invented fact sheets with questions and answers, from which the reading adapter learns.

A sheet is written as a list of fields, as a table, in sentences, or as a table of ranges. Three passages go together:
what a question asks for stands in one of them, and similar facts about the same thing or another one around it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("sheets.toml")
FIRST = (
    "Agnes Boris Celia Dmitri Elsa Farid Gustav Helen Ivan Judith Karim Lena Marco Nadia Otto Priya Ruth Stefan".split()
)
LAST = (
    "Abara Bergman Castell Dorn Eriksen Fontaine Gruber Hale Ivers Jansen Kato Lorenz Mbeki Novak Okafor Ritter".split()
)
CITIES = "Lisbon Oslo Turin Ghent Porto Riga Split Bergen Cork Graz Malmo Nantes Basel Leeds Kyoto Quito".split()
COUNTRIES = "Norway Chile Japan Kenya Portugal Canada Austria Peru Finland Greece Vietnam Morocco Ireland".split()
MONTHS = "January February March April May June July August September October November December".split()
RANGES = (  # what tables of ranges are about: the column's name, and the questions for the largest and the smallest
    ("stem length", "cm", "How long is the longest stem of {it}?", "How long is the shortest stem of {it}?"),
    ("shell width", "mm", "How wide is the widest shell of {it}?", "How wide is the narrowest shell of {it}?"),
    (
        "sugar",
        "g",
        "How much sugar does the sweetest one of {it} have?",
        "How much sugar has the least sweet one of {it}?",
    ),
    ("pressure", "bar", "What is the highest pressure in {it}?", "What is the lowest pressure in {it}?"),
    ("age", "years", "How old is the oldest one of {it}?", "How old is the youngest one of {it}?"),
    ("speed", "km/h", "How fast is the fastest one of {it}?", "How fast is the slowest one of {it}?"),
    ("depth", "m", "How deep is the deepest point of {it}?", "What is the minimum depth of {it}?"),
    ("salt", "%", "How much salt does the strongest one of {it} have?", "How much salt has the weakest one of {it}?"),
    ("price", "euros", "What does the most expensive one of {it} cost?", "How cheap is the cheapest one of {it}?"),
)
FILLERS = (  # sentences that nobody asks for
    "See the list of references for more.",
    "Please tell us if you find a mistake.",
    "Much has been written about this since then, and not all of it is true.",
    "The text below was taken from an older edition and shortened for this page.",
    "It differs from what earlier versions of this page said.",
    "More details are in the second part.",
    "Thanks go to everybody who helped.",
    "The following was checked by two readers.",
)
FACTS = (2, 6)  # of a passage
SAME = 0.5  # the share of other passages that are about the same thing


@dataclass(frozen=True)
class Task:
    """Passages as (source, text); and (question, answer, value): the value stands in the answer and in a passage."""

    passages: tuple[tuple[str, str], ...]
    questions: tuple[tuple[str, str, str], ...]


def task(seed: int, questions: int) -> Task:
    """Three passages and up to `questions` questions about them."""
    rng = np.random.default_rng(seed)
    sheets = tomllib.loads(FILE.read_text(encoding="utf-8"))["sheet"]
    about = [_Sheet(rng, sheets)]
    while len(about) < 3:
        own = about[0] if rng.random() < SAME else _Sheet(rng, sheets)
        if all(own is other or own.name != other.name for other in about):
            about.append(own)
    asked, passages = [], []
    for own in about:
        text, pairs = own.passage()
        passages.append((own.source, text))
        asked += pairs
    order = rng.permutation(3)
    chosen = rng.permutation(len(asked))[:questions]
    return Task(tuple(passages[i] for i in order), tuple(asked[i] for i in chosen))


class _Sheet:
    """One sheet, whose facts are told in passages; no fact is told twice."""

    def __init__(self, rng: np.random.Generator, sheets: Sequence[dict]) -> None:
        self.rng = rng
        kind = sheets[rng.integers(len(sheets))]
        self.name = self._one(kind["names"])
        self.it = kind["of"].format(self.name)
        folder, ending = self._one(("docs", "notes", "sheets", "data")), self._one(("rst", "md", "txt"))
        self.source = f"{folder}/{self.name.lower().replace(' ', '_')}.{ending}"
        self.left = [kind["fact"][i] for i in rng.permutation(len(kind["fact"]))]
        self.ranges = [RANGES[i] for i in rng.permutation(len(RANGES))]

    def passage(self) -> tuple[str, list[tuple[str, str, str]]]:
        """A text, and the question, answer and value of each of its facts."""
        if len(self.left) < FACTS[0] or self.rng.random() < 0.2:
            return self._range_table()
        facts = [self.left.pop() for _ in range(min(len(self.left), int(self.rng.integers(*FACTS, endpoint=True))))]
        values = [value(self.rng, fact["value"]) for fact in facts]
        pairs = [
            (self._one(fact["asks"]).format(it=self.it), _capital(fact["answer"].format(v=text)), text)
            for fact, text in zip(facts, values, strict=True)
        ]
        labels = [self._one(fact["label"]) for fact in facts]
        form = self.rng.integers(5)
        if form == 0:
            text = "\n".join(f":{label}: {own}" for label, own in zip(labels, values, strict=True))
        elif form == 1:
            text = "\n".join(f"**{label}:** {own}" for label, own in zip(labels, values, strict=True))
        elif form == 2:
            width = max(map(len, labels))
            bar = f"{'=' * width} {'=' * 14}"
            lines = [f"{label.ljust(width)} {own.rjust(14)}" for label, own in zip(labels, values, strict=True)]
            text = "\n".join([bar, *lines, bar])
        else:
            sentences = [
                _capital(self._one(fact["says"]).format(it=self.it, v=own))
                for fact, own in zip(facts, values, strict=True)
            ]
            sentences.insert(self.rng.integers(len(sentences) + 1), self._one(FILLERS))
            text = " ".join(sentences)
        return self._title() + text, pairs

    def _range_table(self) -> tuple[str, list[tuple[str, str, str]]]:
        lines, pairs = [], []
        for _ in range(min(len(self.ranges), int(self.rng.integers(1, 4)))):
            name, unit, most, least = self.ranges.pop()
            low, mean, high = sorted(self.rng.integers(10, 900, 3) / 10)
            spread = self.rng.integers(2, 60) / 10
            lines.append(f"{name + ':':<16} {low:>6} {high:>6} {mean:>6} {spread:>6}")
            asked, number = (most, high) if self.rng.random() < 0.7 else (least, low)
            pairs.append((asked.format(it=self.it), f"It is {number} {unit}.", str(number)))
        bar = "================ ====== ====== ====== ======"
        text = "\n".join([bar, f"{'':<16} {'Min':>6} {'Max':>6} {'Mean':>6} {'SD':>6}", bar, *lines, bar])
        return self._title() + text, pairs

    def _title(self) -> str:
        title = self._one((self.name, _capital(self.it), f"About {self.it}"))
        return self._one((f"{title}\n{'-' * len(title)}\n\n", f"# {title}\n\n", f"{title}. ", ""))

    def _one(self, texts: Sequence[str]) -> str:
        return texts[self.rng.integers(len(texts))]


def value(rng: np.random.Generator, form: str) -> str:
    """A value, by the word that begins its form in sheets.toml."""
    kind, *limits = form.split()
    if kind in ("number", "decimal", "year", "month", "size") and all(limit.isdigit() for limit in limits):
        low, high = map(int, limits)
        number = int(np.exp(rng.uniform(np.log(low), np.log(high + 1)))) if kind == "number" else rng.uniform(low, high)
        return {
            "number": f"{number:,}" if rng.random() < 0.2 else str(number),
            "decimal": f"{number:.1f}",
            "year": f"{number:.0f}",
            "month": f"{MONTHS[rng.integers(12)]}{', ' if rng.random() < 0.3 else ' '}{number:.0f}",
            "size": "x".join([str(round(number))] * 2),
        }[kind]
    if kind == "share":
        return f"{rng.integers(10, 990) / 10}%"
    if kind == "person":
        first, last = FIRST[rng.integers(len(FIRST))], LAST[rng.integers(len(LAST))]
        return f"{first[0]}. {last}" if rng.random() < 0.3 else f"{first} {last}"
    words = {"city": CITIES, "country": COUNTRIES}.get(kind) or form.split("|")
    return words[rng.integers(len(words))]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
