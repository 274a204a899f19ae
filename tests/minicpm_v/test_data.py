"""The pictures: what tests ask about was never trained on."""

import numpy as np
import pytest

from notebooks.minicpm_v import data
from notebooks.minicpm_v.data import DEVELOPMENT, EXAMINATION, HELD_OUT_WORDS, held_out
from notebooks.minicpm_v.measuring import quality
from notebooks.minicpm_v.pipeline import slicing
from utils.drawn_world.questions import KINDS, corpus
from utils.drawn_world.scenes import COLOURS, PLACES, SHAPES


@pytest.mark.parametrize("kind", KINDS)
def test_the_examination_has_other_scenes_than_development(kind):
    developed, examined = (
        {picture.tobytes() for picture, _ in held_out(kind, 12, seed)} for seed in (DEVELOPMENT, EXAMINATION)
    )
    assert len(examined) == 12 and not examined & developed
    assert {picture.tobytes() for picture, _ in quality.trials(12, [kind])} == examined


def test_training_never_prints_a_held_out_word():
    rng = np.random.default_rng(0)
    words = {data.word(rng) for _ in range(3000)}
    assert len(words) > 2500 and not words & set(HELD_OUT_WORDS)
    assert {len(word) for word in words} == {3, 4, 5} and not set(HELD_OUT_WORDS) & set(" ".join(corpus()).split())


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_trials_repeat_and_answer_in_the_world_s_words(kind):
    first, again = held_out(kind, 6), held_out(kind, 6)
    assert [q for _, q in first] == [q for _, q in again]
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(first, again, strict=True))
    known = {*COLOURS, *SHAPES, *PLACES, *HELD_OUT_WORDS, "yes", "no", *"0123456789"}
    assert all(question.kind == kind and question.answer in known for _, question in first)
    large = [picture.width * picture.height > 3 * data.SIDE_PX**2 for picture, _ in first]
    assert all(large) if kind == "label" else not any(large)


def test_small_words_have_a_question_each_about_the_picture_of_a_trial():
    for number in range(8):
        picture, asked = data.small_words(number)
        assert picture.width * picture.height > 3 * data.SIDE_PX**2
        assert len({question.text for question in asked}) == len(asked) <= 4
        assert {question.answer for question in asked} <= set(HELD_OUT_WORDS)
    picture, asked = data.small_words(0)
    trial, question = held_out("label", 1)[0]
    assert picture.tobytes() == trial.tobytes() and question.answer in [question.answer for question in asked]


def test_the_page_is_a_photo_that_is_cut():
    page = data.photographed_page()
    assert (page.mode, page.size) == ("RGB", (384, 191)) and len(set(page.convert("L").tobytes())) > 100
    assert slicing.plan(page.size, resolution=data.SIDE_PX).grid == (3, 2)
