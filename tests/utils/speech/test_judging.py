"""Words are counted and voices ranked as the literature does."""

import numpy as np
import pytest

from utils.speech import judging
from utils.speech.speaker_encoder import SAMPLE_RATE


def test_what_a_text_says_has_no_punctuation_and_capital_letters():
    assert judging.characters("你好, kfc!", str) == list("你好KFC")
    assert judging.characters("3", lambda text: text.replace("3", "三")) == ["三"]


@pytest.mark.parametrize(
    ("truth", "heard", "count"),
    [("abc", "abc", 0), ("abc", "axc", 1), ("abc", "", 3), ("", "ab", 2), ("abcd", "bcdx", 2)],
)
def test_errors_are_those_of_levenshtein(truth, heard, count):
    assert judging.edit_distance(truth, heard) == judging.edit_distance(heard, truth) == count


def test_sounds_are_recognised_together_as_far_as_they_fit():
    sounds = [np.full(seconds * SAMPLE_RATE, i, np.float32) for i, seconds in enumerate((10, 10, 10, 26, 1, 40), 1)]
    pieces = list(judging.packed(sounds))
    assert [numbers for numbers, _ in pieces] == [[0, 1], [2], [3], [4], [5]]
    assert pieces[0][1][[0, 11 * SAMPLE_RATE]].tolist() == [1, 2]
    assert len(pieces[0][1]) == 21 * SAMPLE_RATE and (pieces[0][1] == 0).sum() == SAMPLE_RATE


def test_the_error_rate_counts_all_units():
    heard = [([0, 2], "你好再见"), ([1], "")]
    assert judging.error_rate(heard, ["你好", "谢谢", "再来"], list) == pytest.approx(3 / 6)


def test_voices_are_ranked_among_all_that_are_known():
    a, b = (np.eye(2, 256)[i] for i in (0, 1))
    near_a = (0.8 * a + 0.6 * b).astype(np.float32)
    share, cosine = judging.ranking(np.stack([near_a, near_a]), ["a", "b"], {"a": 5 * a, "b": b})
    assert share == 0.5 and cosine == pytest.approx(0.7)
