"""Which answers to questions (`utils.drawn_world.questions`) are correct, and controls that need no picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from PIL import Image

from utils.drawn_world.questions import Question

Trial = tuple[Image.Image, Question]


def normalise(answer: str) -> str:
    """An answer in small letters, without its full stop and without a reason before a colon, blanks single."""
    return re.sub(r"\s+", " ", answer.rpartition(":")[2]).strip().removesuffix(".").rstrip().casefold()


def correct(answers: Sequence[str], trials: Sequence[Trial]) -> list[bool]:
    """Whether each answer is the true one, letter for letter."""
    pairs = zip(answers, trials, strict=True)
    return [normalise(answer) == normalise(question.answer) for answer, (_, question) in pairs]


def accuracy(answers: Sequence[str], trials: Sequence[Trial]) -> dict[str, float]:
    """The share of correct answers to each kind of question, by kind."""
    return share_by_kind([question.kind for _, question in trials], correct(answers, trials))


def share_by_kind(kinds: Sequence[str], successes: Sequence[bool]) -> dict[str, float]:
    """The share of successes among those of each kind."""
    by_kind: dict[str, list[bool]] = {}
    for kind, success in zip(kinds, successes, strict=True):
        by_kind.setdefault(kind, []).append(success)
    return {kind: sum(group) / len(group) for kind, group in by_kind.items()}


def blank_pictures(trials: Sequence[Trial]) -> list[Trial]:
    """A negative control: white pictures of the trials' sizes."""
    return [(Image.new("RGB", picture.size, "white"), question) for picture, question in trials]


def swap_pictures(trials: Sequence[Trial]) -> list[Trial]:
    """A negative control: each question with the next picture of its kind whose question has another answer.

    Raises ValueError for a kind whose questions all have the same answer.
    """
    swapped = []
    for number, (_, question) in enumerate(trials):
        others = [*trials[number + 1 :], *trials[:number]]
        fits = (p for p, other in others if other.kind == question.kind and other.answer != question.answer)
        if (picture := next(fits, None)) is None:
            raise ValueError(f"All questions of kind {question.kind!r} have the same answer. Take more trials.")
        swapped.append((picture, question))
    return swapped


def most_frequent_answers(trials: Sequence[Trial]) -> list[str]:
    """A negative control: to each question the answer that is correct most often for its kind."""
    counts: dict[str, Counter] = {}
    for _, question in trials:
        counts.setdefault(question.kind, Counter())[question.answer] += 1
    return [counts[question.kind].most_common(1)[0][0] for _, question in trials]
