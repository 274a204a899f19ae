"""Questions about drawn scenes (`utils.drawn_world.scenes`), with their answers. Tests use other wordings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from utils.drawn_world.scenes import COLOURS, PLACES, SHAPES, Scene, Thing

KINDS = ("colour", "shape", "count", "place", "relation", "sign", "label")

# {a}: the thing asked about ("the red star"), {A}: the same at the start of a sentence; {b}: another thing;
# {things}: a plural ("circles", "red things"); {colour}: a colour; {relation}: words of RELATIONS
WORDINGS: dict[str, tuple[str, ...]] = {
    "colour": (
        "What colour is {a}?",
        "Which colour does {a} have?",
        "What is the colour of {a}?",
        "Tell me the colour of {a}.",
        "Name the colour of {a}.",
        "{A} is of which colour?",
        "In what colour is {a} painted?",
        "Say which colour {a} has.",
        "What colour is {a} in the picture?",
        "Tell me which colour {a} has.",
        "Which colour is {a}?",
        "Say what the colour of {a} is.",
        "In the picture, what colour is {a}?",
        "What colour do you see on {a}?",
        "Of what colour is {a} in the picture?",
        "Name the colour that {a} has.",
    ),
    "shape": (
        "What is the shape of the {colour} thing?",
        "Which shape is {colour}?",
        "What shape does the {colour} thing have?",
        "Name the shape that is {colour}.",
        "Tell me which shape is painted {colour}.",
        "The {colour} thing has which shape?",
        "Say the shape of the {colour} thing.",
        "What is {colour} here?",
        "What is {colour} in the picture?",
        "Tell me what is {colour}.",
        "Say what shape the {colour} thing has.",
        "Name the shape of what is {colour}.",
        "Which thing is {colour}?",
        "What shape do you see in {colour}?",
        "In the picture, what shape is {colour}?",
        "Of which shape is the {colour} thing?",
    ),
    "count": (
        "How many {things} are there?",
        "How many {things} do you see?",
        "Count the {things}.",
        "What is the number of {things}?",
        "Tell me how many {things} there are.",
        "Say how many {things} the picture has.",
        "Name the number of {things}.",
        "How many {things} are in the picture?",
        "What is the number of {things} in the picture?",
        "Tell me the number of {things}.",
        "Say how many {things} you see.",
        "Which number of {things} does the picture have?",
        "Name how many {things} there are.",
        "In the picture, how many {things} are there?",
        "How many {things} can you count?",
        "Count all {things} in the picture.",
    ),
    "place": (
        "Where is {a}?",
        "In which part of the picture is {a}?",
        "Where do you see {a}?",
        "Tell me where {a} is.",
        "Name the place of {a}.",
        "What is the place of {a}?",
        "{A} is in which part of the picture?",
        "Say where {a} is in the picture.",
        "Where is {a} in the picture?",
        "In what place is {a}?",
        "Tell me in which part of the picture {a} is.",
        "Say where you see {a}.",
        "In which place do you see {a}?",
        "In the picture, where is {a}?",
        "What part of the picture has {a}?",
        "Name the part of the picture in which {a} is.",
    ),
    "relation": (
        "Is {a} {relation} {b}?",
        "Tell me, is {a} {relation} {b}?",
        "Do you see {a} {relation} {b}?",
        "Say yes or no: {a} is {relation} {b}.",
        "Is it true that {a} is {relation} {b}?",
        "In the picture, is {a} {relation} {b}?",
        "Do you see {a} {relation} {b} in the picture?",
        "Say if {a} is {relation} {b}.",
        "Tell me if {a} is {relation} {b}.",
        "Yes or no: is {a} {relation} {b}?",
        "In the picture, do you see {a} {relation} {b}?",
        "Is it so that {a} is {relation} {b}?",
        "Say if you see {a} {relation} {b}.",
        "Answer yes or no: {a} is {relation} {b}.",
    ),
    "sign": (
        "What does the sign say?",
        "Which word is on the sign?",
        "What is written on the sign?",
        "Read the sign.",
        "Tell me the word on the sign.",
        "Name the word that the sign has.",
        "What word do you see on the sign?",
        "Say what the sign says.",
        "What does it say on the sign?",
        "Say what is written on the sign.",
        "Tell me which word the sign has.",
        "Which word does the sign say?",
        "Read the word on the sign.",
        "In the picture, what does the sign say?",
        "Name what is written on the sign.",
        "What is the word on the sign?",
    ),
    "label": (
        "What is written under {a}?",
        "Which word is under {a}?",
        "Read the word under {a}.",
        "What does it say under {a}?",
        "Tell me the word under {a}.",
        "Name the word that you see under {a}.",
        "What word is printed under {a}?",
        "Say what is written under {a}.",
        "What word is under {a}?",
        "Say which word is printed under {a}.",
        "Tell me which word is under {a}.",
        "What do you read under {a}?",
        "Name what is printed under {a}.",
        "In the picture, what is written under {a}?",
        "What does the word under {a} say?",
        "Read the word that is printed under {a}.",
    ),
}
HELD_OUT_WORDINGS: dict[str, tuple[str, ...]] = {
    "colour": (
        "Tell me what colour {a} is.",
        "Of which colour is {a}?",
        "What colour does {a} have in the picture?",
    ),
    "shape": (
        "Tell me the shape of the {colour} thing.",
        "Which shape does the {colour} thing have?",
        "Name what is {colour}.",
    ),
    "count": (
        "What number of {things} do you see?",
        "Say the number of {things} in the picture.",
        "How many {things} does the picture have?",
    ),
    "place": (
        "In what part of the picture do you see {a}?",
        "Say in which place {a} is.",
        "Where in the picture is {a}?",
    ),
    "relation": (
        "Say, is {a} {relation} {b}?",
        "Is {a} in the picture {relation} {b}?",
    ),
    "sign": (
        "What word does the sign have?",
        "Say which word is written on the sign.",
        "Tell me what the sign says.",
    ),
    "label": (
        "Tell me what is written under {a}.",
        "Which word do you see under {a}?",
        "Read what is printed under {a}.",
    ),
}
DESCRIBE_WORDINGS = (
    "What is in the picture?",
    "What do you see?",
    "Name what the picture has.",
    "Tell me what you see here.",
)
PORTRAIT_WORDINGS = ("Tell me of", "Say what you see of", "Name all of")
# How one thing lies to another: (1 or -1 where its column is larger or smaller, the same of its row)
RELATIONS = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


@dataclass(frozen=True)
class Question:
    """A question of one of KINDS in words, and its answer: a word or two, a digit, or the letters of a printed word.

    Counts, relations and labels have a reason: the places to look at, and for relations what would mean yes, what
    would mean no, and which of the two holds. In training it stands before the answer, with a colon.
    """

    kind: str
    text: str
    answer: str
    reason: str = ""

    @property
    def target(self) -> str:
        """What a model learns to say: the reason, if there is one, and the answer."""
        return f"{self.reason}: {self.answer}" if self.reason else self.answer


def ask(scene: Scene, kind: str, rng: np.random.Generator, wordings: dict = WORDINGS) -> Question | None:
    """A question of this kind with one right answer, or None where the scene gives none."""
    wording = str(rng.choice(wordings[kind]))
    if kind == "sign":
        return Question(kind, wording, scene.sign) if scene.sign else None
    if kind == "count":
        return _count(scene, wording, rng)
    if kind == "shape":
        once = [c for c, number in Counter(t.colour for t in scene.things).items() if number == 1]
        if not once:
            return None
        colour = str(rng.choice(once))
        shape = next(t.shape for t in scene.things if t.colour == colour)
        return Question(kind, wording.format(colour=colour), shape)
    named = [(thing, name) for thing in scene.things if (name := _name(scene, thing, rng, kind))]
    if kind == "label":
        named = [(thing, name) for thing, name in named if thing.label]
    if not named:
        return None
    thing, name = named[rng.integers(len(named))]
    if kind == "relation":
        return _relation(scene, wording, thing, name, rng)
    answer = {"colour": thing.colour, "place": thing.place, "label": thing.label}[kind]
    # there are several labels: a model that has named the place of the thing reads the one below it
    reason = f"{thing.colour} {thing.shape} {thing.place}" if kind == "label" else ""
    return Question(kind, wording.format(a=name, A=_capital(name)), answer, reason)


def questions(scene: Scene, rng: np.random.Generator, count: int) -> list[Question]:
    """Up to `count` different questions in training's wordings. Half are about printed words if there are any."""
    kinds = ["colour", "shape", "place", *["count", "relation"] * 2]  # twice as often: they take longer to learn
    printed = "sign" if scene.sign else "label" if scene.words else ""
    asked: dict[tuple[str, str], Question] = {}
    for number in range(count):
        kind = printed if printed and number % 2 else str(rng.choice(kinds))
        question = ask(scene, kind, rng)
        if question:
            # the answer to a question in other words could be copied from above
            asked.setdefault((kind, question.text if kind in ("count", "relation") else question.answer), question)
    different = list(asked.values())
    return [different[i] for i in rng.permutation(len(different))]


def describe(scene: Scene, rng: np.random.Generator) -> Question:
    """A question that asks for everything. The answer lists the things, ninth by ninth, then the sign.

    It is used in training only: one such answer says more about a picture than six others.
    """
    things = sorted(scene.things, key=lambda thing: thing.cell)
    descriptions = [_description(thing) for thing in things]
    if scene.sign:
        descriptions.append(f"sign {scene.sign}")
    return Question("describe", str(rng.choice(DESCRIBE_WORDINGS)), ", ".join(descriptions))


def portraits(scene: Scene, rng: np.random.Generator) -> list[Question]:
    """A question about the sign and about each thing that has a name; the answer repeats the name and describes it.

    They are used in training only: to repeat a name before its description teaches a model to look for what is named.
    """
    asked = []
    if scene.sign:
        asked.append(Question("portrait", f"{rng.choice(PORTRAIT_WORDINGS)} the sign.", f"sign: {scene.sign}"))
    for i in rng.permutation(len(scene.things)):
        thing = scene.things[i]
        if name := _name(scene, thing, rng, "place"):
            answer = f"{name.removeprefix('the ')}: {_description(thing)}"
            asked.append(Question("portrait", f"{rng.choice(PORTRAIT_WORDINGS)} {name}.", answer))
    return [asked[i] for i in rng.permutation(len(asked))]


def _description(thing: Thing) -> str:
    """Colour, shape, place and, if there is one, label of a thing."""
    return " ".join(filter(None, (thing.colour, thing.shape, thing.place, thing.label)))


def _name(scene: Scene, thing: Thing, rng: np.random.Generator, kind: str) -> str:
    """Words that fit this thing alone, or an empty text. They leave out its colour where that is asked for."""
    same = [other for other in scene.things if other.shape == thing.shape]
    alone = [f"the {thing.shape}"] if len(same) == 1 else []
    if kind != "colour":
        if sum(other.colour == thing.colour for other in same) == 1:
            alone.append(f"the {thing.colour} {thing.shape}")
        if kind in ("place", "label") and sum(other.colour == thing.colour for other in scene.things) == 1:
            alone.append(f"the {thing.colour} thing")
    return str(rng.choice(alone)) if alone else ""


def _count(scene: Scene, wording: str, rng: np.random.Generator) -> Question:
    # mostly of what is there, so that zero is not the usual answer
    present = rng.random() < 0.85
    if rng.random() < 0.5:
        shape = str(rng.choice([t.shape for t in scene.things] if present else SHAPES))
        things, counted = plural(shape), [t for t in scene.things if t.shape == shape]
    elif rng.random() < 0.6:
        colour = str(rng.choice([t.colour for t in scene.things] if present else list(COLOURS)))
        things, counted = f"{colour} things", [t for t in scene.things if t.colour == colour]
    else:
        things, counted = "things", list(scene.things)
    places = [thing.place for thing in sorted(counted, key=lambda thing: thing.cell)]
    return Question("count", wording.format(things=things), str(len(counted)), ", ".join(places))


def _relation(scene: Scene, wording: str, thing: Thing, name: str, rng: np.random.Generator) -> Question | None:
    others = [(t, n) for t in scene.things if t is not thing and (n := _name(scene, t, rng, "relation"))]
    if not others:
        return None
    other, other_name = others[rng.integers(len(others))]
    # compared by ninths: two things in the same row are neither above nor below each other
    (row, column), (other_row, other_column) = divmod(thing.cell, 3), divmod(other.cell, 3)
    steps = {
        words: across * (column - other_column) + down * (row - other_row)
        for words, (across, down) in RELATIONS.items()
    }
    relation = str(rng.choice([words for words, distance in steps.items() if distance]))
    true = steps[relation] > 0
    places = ", ".join(f"{n.removeprefix('the ')} {t.place}" for t, n in ((thing, name), (other, other_name)))
    # which word would mean yes stands before the word that fits: to copy is easier to learn than to compare
    asked, opposite = relation.split()[0], OPPOSITE[relation].split()[0]
    reason = f"{places}, {asked} yes, {opposite} no, {asked if true else opposite}"
    text = wording.format(a=name, b=other_name, relation=relation)
    return Question("relation", text, "yes" if true else "no", reason)


def plural(shape: str) -> str:
    """The plural of a shape's name."""
    return f"{shape}es" if shape.endswith("s") else f"{shape}s"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def corpus() -> list[str]:
    """Every wording, and every word of answers and names, for the tokenizer. Printed words are spelled."""
    names = [f"the {colour} {shape}" for colour in COLOURS for shape in SHAPES]
    names += [f"the {colour} thing" for colour in COLOURS]
    plurals = [plural(shape) for shape in SHAPES] + [f"{colour} things" for colour in COLOURS]
    texts = [
        *DESCRIBE_WORDINGS,
        "sign",
        *PLACES,
        *COLOURS,
        *SHAPES,
        "yes",
        "no",
        *"0123456789",
        *["user", "assistant", "system", "Of"] * 9,
    ]
    for wordings in WORDINGS.values():
        for wording in wordings:
            for name, many, colour in zip(names, plurals * 4, [*COLOURS] * 7, strict=True):
                for relation in RELATIONS:
                    texts.append(
                        wording.format(a=name, A=_capital(name), b=name, things=many, colour=colour, relation=relation)
                    )
    return texts
