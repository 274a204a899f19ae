"""Word problems: thoughts that are true, answers that are found, and an examination that training never has."""

import re

import pytest

from notebooks.deepseek_serving import data, training
from notebooks.deepseek_serving.demo import PROBLEM

PRACTICE = [data.practice(number) for number in range(600)]
EXAMINATION = data.examination()
OTHERS = data.examination(data.OTHER_WORDINGS, 15)


@pytest.mark.parametrize("problems", [PRACTICE, EXAMINATION, OTHERS], ids=["practice", "examination", "others"])
def test_thoughts_are_true_and_end_with_the_answer(problems):
    for own in problems:
        equations = re.findall(r"([\d+*/ -]+) = (\d+)\.", own.thoughts)
        assert all(eval(left) == int(right) for left, right in equations), own
        if own.candidates == data.NUMBER:
            assert len(equations) >= 2 and equations[-1][1] == own.answer and int(own.answer) >= 0, own
        else:
            order = re.search(r": (\w+), (\w+), (\w+)\.", own.thoughts)
            assert own.answer in (order[1], order[3]) and own.thoughts.endswith(f"is {own.answer}."), own
            for before, after in re.findall(r"(\w+) is \w+ than (\w+)\.", own.question):
                assert order[0].index(before) < order[0].index(after), own


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("The answer is 32.", True),
        ("23 + 9 = 32", True),
        ("1,032", False),
        ("32 or 31", False),
        ("132", False),
        ("", False),
    ],
)
def test_the_last_number_of_a_reply_counts(reply, right):
    assert data.Problem("", "", "32").is_right(reply) is right
    assert data.Problem("", "", "Anna", "Anna|Ben").is_right("Ben is before Anna") is True
    assert data.Problem("", "", "Anna", "Anna|Ben").is_right("Anna, not Ben") is False


def test_the_examination_is_large_various_and_kept_from_training():
    assert len({own.question for own in EXAMINATION}) == 240 and len({own.question for own in OTHERS}) == 60
    trained = {own.question for own in PRACTICE}
    assert not trained & {own.question for own in [*EXAMINATION, *OTHERS]}
    assert not any(data.is_held_out(own) for own in PRACTICE)
    assert all(data.is_held_out(own) for own in EXAMINATION if own.candidates == data.NUMBER)
    assert not any(name in own.question for own in PRACTICE for name in data.NEW_NAMES)
    assert not any(name in own.question for own in EXAMINATION for name in data.NAMES)


def test_most_answers_are_not_in_their_question():
    counted = [own for own in EXAMINATION if own.candidates == data.NUMBER]
    assert sum(own.answer in re.findall(data.NUMBER, own.question) for own in counted) < len(counted) / 8


def test_held_out_numbers_have_no_pattern_that_training_would_lack():
    for digit in "0123456789":
        assert sum(own.answer.endswith(digit) for own in PRACTICE) > 20


def test_the_problem_of_the_demo_is_not_trained():
    own = data.Problem(PROBLEM, "", "52")
    assert data.is_held_out(own) and PROBLEM.startswith("Greta") and "Greta" in data.NEW_NAMES
    numbers = dict(zip("xyz", re.findall(data.NUMBER, PROBLEM), strict=True))
    assert PROBLEM == data.WORDINGS[0][0].format(a="Greta", b="Bruno", t="apples", **numbers)


def test_every_wording_is_practised_with_and_without_thoughts():
    kinds = {(number % len(data.WORDINGS), training.with_thoughts(number)) for number in range(120)}
    assert len(kinds) == 2 * len(data.WORDINGS)
    assert sum(training.with_thoughts(number) for number in range(120)) == 90
