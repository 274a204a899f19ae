"""Questions about scenes: their answers are true, and tests ask in other words than training."""

import re

import numpy as np
import pytest

from utils.drawn_world import questions
from utils.drawn_world.questions import HELD_OUT_WORDINGS, KINDS, WORDINGS, ask
from utils.drawn_world.scenes import COLOURS, Scene, Thing, random_scene

SCENE = Scene(
    112,
    112,
    (255, 255, 255),
    (
        Thing("star", "red", 18, 18, 20, cell=0, label="COIN"),
        Thing("circle", "blue", 56, 18, 20, cell=1),
        Thing("circle", "red", 18, 94, 20, cell=6),
    ),
)


def all_asked(kind: str, count: int = 200) -> list[questions.Question]:
    """Questions of one kind about the scene above."""
    found = (ask(SCENE, kind, np.random.default_rng(seed)) for seed in range(count))
    return [question for question in found if question]


def asked(kind: str, count: int = 200) -> dict[str, str]:
    """Their texts and answers."""
    return {question.text: question.answer for question in all_asked(kind, count)}


def test_every_kind_has_wordings_of_both_sorts_and_none_is_shared():
    assert set(WORDINGS) == set(HELD_OUT_WORDINGS) == set(KINDS)
    for kind in KINDS:
        assert not set(WORDINGS[kind]) & set(HELD_OUT_WORDINGS[kind])


def test_held_out_wordings_use_words_of_training_only():
    def words(wordings):
        return {word for group in wordings.values() for text in group for word in re.findall(r"[a-z]+", text.lower())}

    assert words(HELD_OUT_WORDINGS) <= words(WORDINGS)


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("colour", "What colour is the star?", "red"),
        ("shape", "Which shape is blue?", "circle"),
        ("count", "How many circles are there?", "2"),
        ("count", "How many red things are there?", "2"),
        ("count", "How many things are there?", "3"),
        ("place", "Where is the red circle?", "bottom left"),
        ("place", "Where is the star?", "top left"),
        ("relation", "Is the star left of the blue circle?", "yes"),
        ("relation", "Is the blue circle above the red circle?", "yes"),
        ("relation", "Is the star below the red circle?", "no"),
        ("label", "What is written under the star?", "COIN"),
    ],
)
def test_answers_are_true(kind, text, answer):
    assert asked(kind, count=2000)[text] == answer


@pytest.mark.parametrize(
    ("kind", "text", "target"),
    [
        ("count", "How many circles are there?", "top, bottom left: 2"),
        ("count", "How many crosses are there?", "0"),
        (
            "relation",
            "Is the star below the red circle?",
            "star top left, red circle bottom left, below yes, above no, above: no",
        ),
        ("label", "What is written under the star?", "red star top left: COIN"),
        ("colour", "What colour is the star?", "red"),
    ],
)
def test_counts_relations_and_labels_have_a_reason(kind, text, target):
    found = {question.text: question for question in all_asked(kind, 2000)}[text]
    assert found.target == target and found.answer == target.rpartition(": ")[2]


def test_nothing_ambiguous_is_asked():
    assert not any("the circle" in text for kind in ("colour", "place", "relation") for text in asked(kind))
    assert not any("red" in text for text in asked("shape"))
    assert not any("star below the blue" in text for text in asked("relation"))  # side by side


def test_no_sign_no_question_about_it():
    assert ask(SCENE, "sign", np.random.default_rng(0)) is None


def test_colour_of_a_thing_is_never_in_the_question():
    assert not any(colour in text for text in asked("colour") for colour in COLOURS)


def labelled(rng: np.random.Generator) -> Scene:
    return random_scene(rng, 300, 300, things=(2, 5), labels=("KEY", "ROPE"))


def test_a_conversation_does_not_ask_for_the_same_answer_twice():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        found = questions.questions(labelled(rng), rng, 8)
        answers = [(q.kind, q.answer) for q in found if q.kind not in ("count", "relation")]
        assert len(set(answers)) == len(answers)


def test_a_portrait_begins_with_the_name_that_was_asked_for():
    rng = np.random.default_rng(9)
    for _ in range(20):
        scene = labelled(rng)
        portraits = questions.portraits(scene, rng)
        assert len(portraits) <= len(scene.things)
        for question in portraits:
            name, _, rest = question.answer.partition(": ")
            assert question.text.endswith(f" the {name}.")
            (thing,) = [
                x for x in scene.things if rest == " ".join(filter(None, (x.colour, x.shape, x.place, x.label)))
            ]
            assert set(name.split()) <= {thing.colour, thing.shape, "thing"}


def test_the_corpus_holds_every_word_of_wordings():
    words = {word.lower() for text in questions.corpus() for word in re.findall(r"[A-Za-z]+", text)}
    held_out = " ".join(text for wordings in HELD_OUT_WORDINGS.values() for text in wordings).lower()
    assert set(re.findall(r"[a-z]+", held_out)) - {"a", "b", "relation"} <= words
