"""Answers are right letter for letter, and the controls are what they are called."""

import pytest
from PIL import Image

from utils.drawn_world import answers
from utils.drawn_world.questions import Question

ANSWERS = (("a", "1"), ("b", "2"), ("a", "3"), ("b", "4"), ("a", "3"))


@pytest.fixture
def trials() -> list[answers.Trial]:
    return [
        (Image.new("RGB", (8 + number, 9), "red"), Question(kind, "?", answer))
        for number, (kind, answer) in enumerate(ANSWERS)
    ]


def test_answers_are_compared_without_case_blanks_reasons_and_the_last_full_stop():
    assert answers.normalise("Top left, centre: 2") == "2" and answers.normalise("2: top left") == "top left"
    assert answers.normalise("  Top   LEFT .\n") == answers.normalise("top left") == "top left"
    assert answers.normalise("left.") == "left" and answers.normalise("1.5") == "1.5"
    assert answers.normalise("..") == "." and answers.normalise("B I R D") != answers.normalise("bird")


def test_accuracy_is_counted_by_kind(trials):
    assert answers.accuracy(["1.", "x", "1"], trials[:3]) == {"a": 0.5, "b": 0.0}
    with pytest.raises(ValueError):
        answers.accuracy(["1"], trials)


def test_another_picture_is_one_of_that_kind_with_another_answer(trials):
    of = {id(picture): question for picture, question in trials}
    for (_, question), (picture, same) in zip(trials, answers.swap_pictures(trials), strict=True):
        other = of[id(picture)]
        assert same is question and other.kind == question.kind and other.answer != question.answer
    with pytest.raises(ValueError, match="All questions of kind 'a' have the same answer"):
        answers.swap_pictures([trials[2], trials[4]])


def test_a_blank_picture_is_white_and_as_large(trials):
    for (picture, _), (white, _) in zip(trials, answers.blank_pictures(trials), strict=True):
        assert white.size == picture.size and white.getextrema() == ((255, 255),) * 3


def test_the_most_frequent_answer_is_that_of_each_kind(trials):
    assert answers.most_frequent_answers(trials) == ["3", "2", "3", "2", "3"]
