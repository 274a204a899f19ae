"""Are answers to questions (`utils.drawn_world.questions`) right, and do they need the picture?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from PIL import Image

from utils.drawn_world.questions import Question

Trial = tuple[Image.Image, Question]


def plain(answer: str) -> str:
    """An answer in small letters, without its full stop and without reasons before a colon, blanks single."""
    return re.sub(r"\s+", " ", answer.rpartition(":")[2]).strip().removesuffix(".").rstrip().casefold()


def verdicts(said: Sequence[str], trials: Sequence[Trial]) -> list[bool]:
    """Whether each answer is the true one, letter for letter."""
    return [plain(answer) == plain(question.answer) for answer, (_, question) in zip(said, trials, strict=True)]


def accuracy(said: Sequence[str], trials: Sequence[Trial]) -> dict[str, float]:
    """The share of right answers to each kind of question, by kind."""
    return shares([question.kind for _, question in trials], verdicts(said, trials))


def shares(kinds: Sequence[str], right: Sequence[bool]) -> dict[str, float]:
    """The share of what is right among those of each kind."""
    found: dict[str, list[bool]] = {}
    for kind, verdict in zip(kinds, right, strict=True):
        found.setdefault(kind, []).append(verdict)
    return {kind: sum(mine) / len(mine) for kind, mine in found.items()}


def blank(trials: Sequence[Trial]) -> list[Trial]:
    """A control: white pictures of the trials' sizes."""
    return [(Image.new("RGB", picture.size, "white"), question) for picture, question in trials]


def exchanged(trials: Sequence[Trial]) -> list[Trial]:
    """A control: each question with the next picture of its kind whose question has another answer.

    Raises ValueError for a kind whose questions all have the same answer.
    """
    mixed = []
    for number, (_, question) in enumerate(trials):
        others = [*trials[number + 1 :], *trials[:number]]
        fits = (p for p, other in others if other.kind == question.kind and other.answer != question.answer)
        if (picture := next(fits, None)) is None:
            raise ValueError(f"All questions of kind {question.kind!r} have the same answer. Take more trials.")
        mixed.append((picture, question))
    return mixed


def most_frequent(trials: Sequence[Trial]) -> list[str]:
    """A control: to each question the answer that is right most often for its kind."""
    counts: dict[str, Counter] = {}
    for _, question in trials:
        counts.setdefault(question.kind, Counter())[question.answer] += 1
    return [counts[question.kind].most_common(1)[0][0] for _, question in trials]
