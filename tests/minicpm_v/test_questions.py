"""Questions about scenes: their answers are true, and what tests ask was never trained on."""

import re

import numpy as np
import pytest

from notebooks.minicpm_v import questions
from notebooks.minicpm_v.questions import HELD_OUT_WORDINGS, KINDS, WORDINGS, WRITTEN, ask, held_out
from utils.scenes import COLOURS, PLACES, SHAPES, Scene, Thing

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


def asked(kind: str, scene: Scene = SCENE, count: int = 200) -> dict[str, str]:
    """Questions of one kind and their answers."""
    found = (ask(scene, kind, np.random.default_rng(seed)) for seed in range(count))
    return {question.text: question.answer for question in found if question}


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


def test_nothing_ambiguous_is_asked():
    assert not any("the circle" in text for kind in ("colour", "place", "relation") for text in asked(kind))
    assert not any("red" in text for text in asked("shape"))
    assert not any("star below the blue" in text for text in asked("relation"))  # side by side


def test_no_sign_no_question_about_it():
    assert ask(SCENE, "sign", np.random.default_rng(0)) is None


def test_colour_of_a_thing_is_never_in_the_question():
    assert not any(colour in text for text in asked("colour") for colour in COLOURS)


def test_training_never_prints_a_held_out_word():
    rng = np.random.default_rng(0)
    questions_words = {questions.word(rng) for _ in range(3000)}
    assert len(questions_words) > 2500 and not questions_words & set(WRITTEN)


def test_a_conversation_does_not_ask_for_the_same_answer_twice():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        found = questions.questions(questions.large_scene(rng), rng, 8)
        answers = [(q.kind, q.answer) for q in found if q.kind not in ("count", "relation")]
        assert len(set(answers)) == len(answers)


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_trials_repeat_and_answer_in_the_world_s_words(kind):
    first, again = held_out(kind, 6), held_out(kind, 6)
    assert [q for _, q in first] == [q for _, q in again]
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(first, again, strict=True))
    known = {*COLOURS, *SHAPES, *PLACES, *WRITTEN, "yes", "no", *"0123456789"}
    assert all(question.kind == kind and question.answer in known for _, question in first)
    large = [picture.width * picture.height > 3 * questions.SIDE**2 for picture, _ in first]
    assert all(large) if kind == "label" else not any(large)


def test_the_corpus_holds_every_word_of_wordings_and_answers():
    words = {word for text in questions.corpus() for word in re.findall(r"[A-Za-z]+", text)}
    _, asked_for = zip(*[trial for kind in KINDS for trial in held_out(kind, 5)], strict=True)
    assert {word.lower() for q in asked_for for word in re.findall(r"[A-Za-z]+", q.text)} <= {
        word.lower() for word in words
    }
    assert not words & set(WRITTEN)
