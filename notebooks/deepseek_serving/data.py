"""Word problems of two steps, with thoughts that solve them: what the tiny model learns to think about.

A wording is a text and the plan by which it is solved. All problems are made from a seed. Those of the examination have
names, and groups of numbers, that training never has; OTHER_WORDINGS are never trained at all.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

NAMES = (
    "Anna Ben Carla David Emma Felix Grace Hugo Iris Jack Kate Leo Mary Noah Olga Paul Rosa Sam Tina Victor"
).split()
NEW_NAMES = "Alma Bruno Clara Dario Edith Fritz Greta Henry".split()  # of the examination
THINGS = "apples books pencils cards stamps marbles coins shells cookies stickers plums buttons".split()
NUMBER = r"\d+"
COMPARISONS = {
    "taller": ("tallest", "shortest"),
    "older": ("oldest", "youngest"),
    "faster": ("fastest", "slowest"),
    "richer": ("richest", "poorest"),
}


@dataclass(frozen=True)
class Problem:
    """A question with the thoughts that lead to its answer; candidates: a regular expression of what may be one."""

    question: str
    thoughts: str
    answer: str
    candidates: str = NUMBER

    @property
    def sentence(self) -> str:
        return f"The answer is {self.answer}."

    def is_right(self, reply: str) -> bool:
        """Whether the last candidate in a reply is the answer."""
        found = re.findall(rf"\b(?:{self.candidates})\b", re.sub(r"(?<=\d),(?=\d{3})", "", reply))
        return bool(found) and found[-1] == self.answer


class Draw:
    """Numbers and words of one problem, drawn from a seed."""

    def __init__(self, seed: Sequence[int], names: Sequence[str]) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.people = [str(name) for name in rng.permutation(names)[:3]]
        self.things = str(rng.choice(THINGS))

    def number(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))


# --- plans: the numbers of a problem, the thoughts, and the answer ---------------------------------------------------

Plan = Callable[[Draw], tuple[dict[str, int], list[str], int]]


def plus(a: int, b: int) -> list[str]:
    """The sums that lead from a to a + b: tens first, then ones."""
    return [f"{left} + {right} = {left + right}." for left, right in _parts(a, b, 1)]


def minus(a: int, b: int) -> list[str]:
    """The differences that lead from a to a - b: tens first, then ones."""
    return [f"{left} - {right} = {left - right}." for left, right in _parts(a, b, -1)]


def times(a: int, b: int) -> list[str]:
    """The products that lead to a * b, where b may have two digits."""
    if b <= 10:
        return [f"{a} * {b} = {a * b}."]
    tens, ones = b - b % 10, b % 10
    steps = [f"{a} * {tens} = {a * tens}."]
    return [*steps, f"{a} * {ones} = {a * ones}.", *plus(a * tens, a * ones)] if ones else steps


def _parts(a: int, b: int, sign: int) -> Iterator[tuple[int, int]]:
    for part in (b - b % 10, b % 10):
        if part:
            yield a, part
            a += sign * part


def add_take(draw: Draw) -> tuple[dict[str, int], list[str], int]:
    x, y = draw.number(11, 79), draw.number(11, 79)
    z = draw.number(3, x + y - 2)
    return {"x": x, "y": y, "z": z}, plus(x, y) + minus(x + y, z), x + y - z


def take_add(draw: Draw) -> tuple[dict[str, int], list[str], int]:
    x, y = draw.number(15, 89), draw.number(11, 59)
    z = draw.number(2, x - 1)
    return {"x": x, "y": y, "z": z}, minus(x, z) + plus(x - z, y), x - z + y


def take_take(draw: Draw) -> tuple[dict[str, int], list[str], int]:
    x = draw.number(30, 99)
    y = draw.number(2, x - 10)
    z = draw.number(2, x - y - 1)
    return {"x": x, "y": y, "z": z}, minus(x, y) + minus(x - y, z), x - y - z


def add_add(draw: Draw) -> tuple[dict[str, int], list[str], int]:
    x, y, z = (draw.number(5, 59) for _ in range(3))
    return {"x": x, "y": y, "z": z}, plus(x, y) + plus(x + y, z), x + y + z


def times_take(draw: Draw) -> tuple[dict[str, int], list[str], int]:
    n, m = draw.number(2, 9), draw.number(3, 19)
    z = draw.number(2, n * m - 1)
    return {"n": n, "m": m, "z": z}, times(n, m) + minus(n * m, z), n * m - z


def times_add(draw: Draw) -> tuple[dict[str, int], list[str], int]:
    n, m, z = draw.number(2, 9), draw.number(2, 19), draw.number(2, 69)
    return {"n": n, "m": m, "z": z}, times(n, m) + plus(n * m, z), n * m + z


def rest_of(draw: Draw) -> tuple[dict[str, int], list[str], int]:
    x, y, rest = draw.number(11, 69), draw.number(11, 69), draw.number(5, 69)
    whole = x + y + rest
    return {"x": x, "y": y, "w": whole}, plus(x, y) + minus(whole, x + y), rest


def more_and_both(draw: Draw) -> tuple[dict[str, int], list[str], int]:
    x, y = draw.number(11, 59), draw.number(2, 39)
    return {"x": x, "y": y}, plus(x, y) + plus(x, x + y), x + x + y


def add_share(draw: Draw) -> tuple[dict[str, int], list[str], int]:
    n, each = draw.number(2, 9), draw.number(2, 10)
    x = draw.number(1, n * each - 1)
    y = n * each - x
    return {"x": x, "y": y, "n": n}, [*plus(x, y), f"{n * each} / {n} = {each}."], each


def change_of_100(draw: Draw) -> tuple[dict[str, int], list[str], int]:
    n, p = draw.number(2, 5), draw.number(2, 19)
    return {"n": n, "p": p}, times(n, p) + minus(100, n * p), 100 - n * p


# --- wordings --------------------------------------------------------------------------------------------------------

Wording = tuple[str, Plan]
COMPARED = "compared"  # the wording of problems without numbers
WORDINGS: tuple[Wording, ...] = (
    ("{a} has {x} {t}. {a} buys {y} more and gives {z} to {b}. How many {t} does {a} have now?", add_take),
    ("{a} is {x} years old. {b} is {y} years older than {a}. {c} is {z} years younger than {b}. How old is {c}?",
     add_take),
    ("A library has {x} books about animals and {y} books about plants. {z} of them are lent out. "
     "How many books are there?", add_take),
    ("{a} finds {x} {t} and {b} finds {y}. Together they lose {z}. How many {t} are left?", add_take),
    ("What is {x} + {y} - {z}?", add_take),
    ("A tank holds {x} litres. {a} takes out {z} litres and pours in {y} litres. How many litres are in it now?",
     take_add),
    ("{a} has {x} euros, spends {z} euros and then earns {y} euros. How many euros does {a} have?", take_add),
    ("There are {x} birds in a tree. {z} fly away and {y} come. How many birds are in the tree?", take_add),
    ("What is {x} - {z} + {y}?", take_add),
    ("{a} bakes {x} rolls. {b} eats {y} and {c} eats {z}. How many rolls are left?", take_take),
    ("A rope is {x} metres long. {a} cuts off {y} metres and then {z} metres. How long is the rest?", take_take),
    ("{a} has {x} {t}. {a} gives {y} to {b} and {z} to {c}. How many {t} does {a} keep?", take_take),
    ("{a} collects {x} {t} on Monday, {y} on Tuesday and {z} on Wednesday. How many {t} is that in all?", add_add),
    ("A box holds {m} {t}. {a} has {n} boxes and loses {z} {t}. How many {t} are left?", times_take),
    ("A train has {n} wagons with {m} seats each. {z} seats are taken. How many seats are free?", times_take),
    ("{a} saves {n} euros each week for {m} weeks and then spends {z} euros. How many euros does {a} still have?",
     times_take),
    ("{a} plants {n} rows of {m} carrots. Rabbits eat {z} of them. How many carrots are left?", times_take),
    ("{a} has {n} bags with {m} {t} each and {z} single {t}. How many {t} does {a} have?", times_add),
    ("A taxi costs {z} euros and {n} euros for each kilometre. What does a ride of {m} kilometres cost?", times_add),
    ("What is {n} * {m} + {z}?", times_add),
    ("{a} reads {x} pages on Monday and {y} pages on Tuesday. The book has {w} pages. How many pages are left?",
     rest_of),
    ("{a} wants to walk {w} kilometres. {a} walks {x} on the first day and {y} on the second. How many are left?",
     rest_of),
    ("There are {w} children in a camp. {x} swim and {y} play football. How many do neither?", rest_of),
    ("{a} has {x} {t}. {b} has {y} more than {a}. How many {t} do they have together?", more_and_both),
    ("{a} scores {x} points, and {b} scores {y} points more. How many points do they score together?", more_and_both),
    ("There are {x} red and {y} blue {t}. {n} children share them equally. How many {t} does each child get?",
     add_share),
    ("{a} picks {x} and {b} picks {y} {t}. They fill {n} equal bags. How many {t} are in each bag?", add_share),
    ("{a} buys {n} books for {p} euros each and pays with a note of 100 euros. How many euros does {a} get back?",
     change_of_100),
    ("{a} buys {n} tickets for {p} euros each with a voucher of 100 euros. How many euros are left on it?",
     change_of_100),
    (COMPARED, None),
)  # fmt: skip
OTHER_WORDINGS: tuple[Wording, ...] = (
    ("{x} people sit in a bus. At the next stop {z} get off and {y} get on. How many people sit in the bus now?",
     take_add),
    ("In a garden there are {n} rows of {m} trees. The gardener plants another {z} trees. How many trees are there "
     "in all?", times_add),
    ("{a} writes {x} letters in spring and {y} letters in summer, and burns {z} of them. How many letters remain?",
     add_take),
    ("A jug has {x} glasses of juice. {b} drinks {y} of them and {c} drinks {z}. How many glasses of juice remain?",
     take_take),
)  # fmt: skip


def make(wording: Wording, draw: Draw) -> Problem:
    """The problem of a wording with what was drawn."""
    text, plan = wording
    if text == COMPARED:
        return _compared(draw)
    numbers, thoughts, answer = plan(draw)
    words = dict(zip("abc", draw.people, strict=True))
    return Problem(text.format(t=draw.things, **words, **numbers), " ".join(thoughts), str(answer))


def _compared(draw: Draw) -> Problem:
    word = str(draw.rng.choice(list(COMPARISONS)))
    most, least = COMPARISONS[word]
    first, second, third = draw.people
    facts = [f"{first} is {word} than {second}.", f"{second} is {word} than {third}."]
    asked, answer = ((most, first), (least, third))[draw.number(0, 1)]
    question = f"{' '.join(str(fact) for fact in draw.rng.permutation(facts))} Who is the {asked}?"
    order = f"From {most} to {least}: {first}, {second}, {third}."
    thoughts = f"{first} is {word} than {second}, {second} than {third}. {order} The {asked} is {answer}."
    return Problem(question, thoughts, answer, "|".join(draw.people))


def practice(number: int) -> Problem:
    """The training problem with this number: the wordings take turns, everything else is drawn."""
    wording = WORDINGS[number % len(WORDINGS)]
    drawn = (make(wording, Draw([0, number, attempt], NAMES)) for attempt in itertools.count())
    return next(own for own in drawn if not is_held_out(own))


def examination(wordings: Sequence[Wording] = WORDINGS, each: int = 8) -> list[Problem]:
    """Problems that training never has, `each` of every wording: with NEW_NAMES, and with numbers that are held out."""
    made: dict[str, Problem] = {}
    for place, wording in enumerate(wordings, 1):
        for number in itertools.count():
            own = make(wording, Draw([1, place, number], NEW_NAMES))
            if own.candidates != NUMBER or is_held_out(own):
                made.setdefault(own.question, own)
            if len(made) == place * each:
                break
    return list(made.values())


def is_held_out(own: Problem) -> bool:
    """Whether the numbers of a problem are kept for the examination: a fifth of all groups is, by their hash."""
    numbers = " ".join(re.findall(NUMBER, own.question))
    return bool(numbers) and int(hashlib.sha256(numbers.encode()).hexdigest(), 16) % 5 == 0
