"""How many syllables a reader of Mandarin reads right: `python -m tests.utils.speech.mandarin.scoring`.

The command measures `utils.speech.mandarin` on both halves of the sentences in this folder and writes the numbers to
results/examination/mandarin.json, where those of the two front ends that it replaced stay as they were measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from utils.files import replaced
from utils.paths import ROOT
from utils.speech.judging import edit_distance
from utils.speech.mandarin import LETTERS, Reader, normalise

HALVES = ("development", "test")
RESULTS = ROOT / "results" / "examination" / "mandarin.json"
THIS = "this reader"  # its name in the results
Score = dict[str, list[int]]  # class: syllables read right, syllables


class Usual:
    """The usual readings of a syllable; it equals each of them."""

    def __init__(self, readings: str) -> None:
        self.readings = readings.split("/")

    def __eq__(self, other: object) -> bool:
        return other in self.readings


class Sentence(NamedTuple):
    """A sentence of the test set."""

    kind: str  # the heading that it stands below
    text: str
    syllables: list[Usual]


def sentences(half: str) -> Iterator[Sentence]:
    """The sentences of one of HALVES."""
    kind = ""
    for line in Path(__file__).with_name(f"{half}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif " = " in line:
            text, expected = line.split(" = ")
            yield Sentence(kind, text, [*map(Usual, expected.split())])


def score(read: Callable[[str], list[str]], half: str) -> Score:
    """The score of a reader on one half, by class.

    read: the syllables of a text, without those of Latin words. Insertions count as errors, as do omissions.
    """
    result: Score = {}
    for kind, text, expected in sentences(half):
        right, total = result.setdefault(kind, [0, 0])
        wrong = edit_distance(expected, [spelling(syllable) for syllable in read(text)])
        result[kind] = [right + max(0, len(expected) - wrong), total + len(expected)]
    return result


def spelling(syllable: str) -> str:
    """A syllable as pinyin writes it: with u for ü after j, q, x and y."""
    return re.sub("^([jqxy])v", r"\1u", syllable)


def share(score: Score) -> float:
    """The share of all syllables that are right."""
    return sum(right for right, _ in score.values()) / sum(total for _, total in score.values())


class Reading:
    """`utils.speech.mandarin` as `score` asks it."""

    def __init__(self) -> None:
        self.reader = Reader()

    def __call__(self, text: str) -> list[str]:
        """The syllables of a text. A mark ends a phrase, and Latin letters have no syllables here."""
        phrases = re.split("[,.!?…—-]", normalise(text, "letters"))
        feet = (foot for phrase in phrases if phrase.strip() for foot in self.reader.read(phrase))
        syllables = (syllable for foot in feet for word in foot for syllable in word)
        return [f"{s.pinyin}{s.tone}" for s in syllables if s.text and s.text not in LETTERS]


def main() -> None:
    reading, results = Reading(), json.loads(RESULTS.read_text(encoding="utf-8"))
    results["readers"][THIS] = {half: score(reading, half) for half in HALVES}
    with replaced(RESULTS) as partial:
        partial.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, halves in results["readers"].items():
        print(f"{name:24}", *(f"{half} {share(halves[half]):.4f}" for half in HALVES))


if __name__ == "__main__":
    main()
