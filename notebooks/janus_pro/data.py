"""Pictures of the drawn world (`utils.drawn_world.scenes`): some to ask about, some that a sentence asks for.

Things to be drawn are of one size, on white, on the raster of the autoencoder: each fills four tokens.
Kept for tests are scenes, wordings, and pairs of colour and shape that training never asks for by both names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from utils.drawn_world.questions import BESIDE, HELD_OUT_WORDINGS, Question, ask, plural
from utils.drawn_world.scenes import BACKGROUNDS, COLOURS, PLACES, SHAPES, Scene, Thing, draw, random_scene

SIDE = 96  # pixels
TOKEN = 16  # pixels that a token of a drawing is wide and high
TALL = 26  # pixels, of a thing to be drawn: it fills two tokens and leaves a seam
QUESTIONS = ("colour", "shape", "count", "place", "relation")  # kinds of questions
WISHES = ("thing", "place", "count", "several", "relation", "new pair")  # kinds of sentences
NUMBERS = {1: "a", 2: "two", 3: "three"}
NEW_PAIRS = (  # asked for by both names in tests only
    ("purple", "circle"),
    ("orange", "square"),
    ("black", "triangle"),
    ("green", "star"),
    ("brown", "cross"),
    ("blue", "heart"),
)
KNOWN_PAIRS = tuple((c, s) for c in COLOURS for s in SHAPES if (c, s) not in NEW_PAIRS)
ALL_PAIRS = KNOWN_PAIRS + NEW_PAIRS
POSITIONS = dict.fromkeys(PLACES, "at the") | {"centre": "in the", "left": "on the", "right": "on the"}
SENTENCES = (
    "{a}",
    "Draw {a}.",
    "Please draw {a}.",
    "Draw {a}, please.",
    "A picture of {a}.",
    "Draw a picture of {a}.",
    "Make a picture of {a}.",
    "Make a picture with {a}.",
    "Show me {a}.",
    "Please show me {a}.",
    "I want to see {a}.",
    "I want a picture with {a}.",
)
NEW_SENTENCES = ("Please make a picture of {a}.", "I want a picture of {a}.", "Please show me a picture with {a}.")

Pair = tuple[str, str]  # colour, shape


@dataclass(frozen=True)
class Wish:
    """What a sentence of a kind of WISHES (or `half_told`) asks for: a thing of each pair, and where, if it says so.

    place: of PLACES, where the only thing is. beside: of BESIDE, how the first thing lies to the second.
    """

    kind: str
    text: str
    pairs: tuple[Pair, ...]
    place: str = ""
    beside: str = ""


def any_scene(rng: np.random.Generator) -> Scene:
    """A scene to ask about; one of four could have been drawn for a sentence."""
    if rng.random() < 0.25:
        return drawable(rng, _pairs(rng, int(rng.integers(1, 4)), KNOWN_PAIRS))
    return random_scene(rng, SIDE, SIDE, things=(1, 6))


def drawable(rng: np.random.Generator, pairs: Sequence[Pair]) -> Scene:
    """A scene of these things, each in the middle of a ninth of its own."""
    things = []
    for (colour, shape), cell in zip(pairs, rng.permutation(9), strict=False):
        row, column = divmod(int(cell), 3)
        x, y = (2 * TOKEN * at + TOKEN for at in (column, row))
        things.append(Thing(shape, colour, x, y, TALL, int(cell)))
    return Scene(SIDE, SIDE, BACKGROUNDS[0], tuple(things))


def twins(rng: np.random.Generator) -> Scene:
    """A scene to ask about, in which two to four things are alike; it could be drawn."""
    first, *others = _pairs(rng, int(rng.integers(1, 4)), ALL_PAIRS)
    return drawable(rng, [first] * int(rng.integers(2, 5)) + others)


def anything(rng: np.random.Generator) -> Scene:
    """A scene that could be drawn, with up to six things of any pairs."""
    return drawable(rng, _pairs(rng, int(rng.integers(7)), ALL_PAIRS))


def wish(
    rng: np.random.Generator, kind: str, sentences: Sequence[str] = SENTENCES, pairs: Sequence[Pair] = KNOWN_PAIRS
) -> tuple[Scene, Wish]:
    """A sentence of a kind of WISHES that asks for some of `pairs`, and one of the scenes that fulfil it."""
    place = beside = ""
    if kind == "several":
        chosen = _pairs(rng, int(rng.integers(2, 4)), pairs)
        if len(chosen) == 3 and rng.random() < 0.4:
            chosen[1] = chosen[0]
    elif kind == "count":
        chosen = _pairs(rng, 1, pairs) * int(rng.integers(2, 4))
    else:
        chosen = _pairs(rng, 2 if kind == "relation" else 1, pairs)
    scene = drawable(rng, chosen)
    asked = listed(chosen)
    if kind == "place":
        place = scene.things[0].place
        asked = f"{asked} {POSITIONS[place]} {place}"
    if kind == "relation":
        beside = str(rng.choice(lies(scene.things[0].cell, scene.things[1].cell)))
        asked = f"{listed(chosen[:1])} {beside} {listed(chosen[1:])}"
    return scene, Wish(kind, str(rng.choice(sentences)).format(a=asked), tuple(chosen), place, beside)


def half_told(rng: np.random.Generator) -> tuple[Scene, Wish]:
    """A sentence that tells only the colour or only the shape of a thing of any pair, and a scene with such a thing.

    In training this is how new pairs are asked for, never by both names.
    """
    ((colour, shape),) = pairs = tuple(_pairs(rng, 1, ALL_PAIRS))
    named = shape if rng.random() < 0.5 else f"{colour} thing"
    text = str(rng.choice(SENTENCES)).format(a=f"{article(named)} {named}")
    return drawable(rng, pairs), Wish("half", text, pairs)


def lies(cell: int, other: int) -> list[str]:
    """The words of BESIDE that hold of a thing in one ninth and another thing in the other ninth."""
    (y, x), (v, u) = divmod(cell, 3), divmod(other, 3)
    return [words for words, (across, down) in BESIDE.items() if across * (x - u) + down * (y - v) > 0]


def listed(pairs: Sequence[Pair]) -> str:
    """Things in words: "two red circles and a blue star"."""
    named = []
    for (colour, shape), number in Counter(pairs).items():
        many = article(colour) if number == 1 else NUMBERS[number]
        named.append(f"{many} {colour} {shape if number == 1 else plural(shape)}")
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))


def article(word: str) -> str:
    """The one that stands before a word."""
    return "an" if word[0] in "aeiou" else "a"


def held_out(kind: str, count: int, seed: int = 1) -> list[tuple[Image.Image, Question]]:
    """Pictures and questions of a kind of QUESTIONS: scenes and wordings that training never sees."""
    made: list[tuple[Image.Image, Question]] = []
    number = 0
    while len(made) < count:
        rng = np.random.default_rng([seed, QUESTIONS.index(kind), number, 7])  # training's seeds are of two numbers
        number += 1
        scene = random_scene(rng, SIDE, SIDE, things=(1, 6))
        if question := ask(scene, kind, rng, HELD_OUT_WORDINGS):
            made.append((draw(scene), question))
    return made


def held_out_wishes(kind: str, count: int, seed: int = 1) -> list[tuple[Image.Image, Wish]]:
    """Different sentences of a kind of WISHES in wordings that training never hears, each with a fitting picture.

    Raises ValueError for more new pairs than there are.
    """
    if kind == "new pair" and count > len(NEW_PAIRS):
        raise ValueError(f"There are {len(NEW_PAIRS)} new pairs, not {count}. Ask for fewer.")
    made: dict[tuple, tuple[Image.Image, Wish]] = {}
    rng = np.random.default_rng([seed, WISHES.index(kind), 0, 8])
    while len(made) < count:
        scene, asked = wish(rng, kind, NEW_SENTENCES, NEW_PAIRS if kind == "new pair" else KNOWN_PAIRS)
        made.setdefault((asked.pairs, asked.place, asked.beside), (draw(scene), asked))
    return list(made.values())


def corpus() -> list[str]:
    """What sentences are made of, for the tokenizer."""
    asked = [listed([pair] * number) for pair in KNOWN_PAIRS for number in NUMBERS]
    asked += [f"{listed([pair])} {POSITIONS[place]} {place}" for pair in KNOWN_PAIRS for place in PLACES]
    return [sentence.format(a=a) for sentence in SENTENCES for a in asked]


def _pairs(rng: np.random.Generator, count: int, pairs: Sequence[Pair]) -> list[Pair]:
    """Different ones."""
    return [pairs[i] for i in rng.choice(len(pairs), count, replace=False)]
