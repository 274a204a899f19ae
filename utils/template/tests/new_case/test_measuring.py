"""Measuring sees the difference between good and bad; what it measures passes."""

import numpy as np

from notebooks.new_case import measuring
from utils import compare


def test_accuracy_is_the_share_of_right_answers():
    scores = np.eye(10)[[1, 2, 3, 3]]
    assert measuring.accuracy(scores, np.array([1, 2, 3, 4])) == 0.75


def test_the_tiny_model_passes_and_its_control_fails():
    rows = [*measuring.parity("tiny", "CPU"), *measuring.quality("tiny", "CPU")]
    compare.check(rows)
    assert len([row for row in rows if "controls" in row]) == 1


def test_speed_has_a_row_for_each_runtime_and_batch():
    rows = measuring.speed(rounds=1)
    assert [row["workload"] for row in rows] == ["batch 1"] * 3 + ["batch 256"] * 3
    assert all(row["median_ms"] > 0 for row in rows)
