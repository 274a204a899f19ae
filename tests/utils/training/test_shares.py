"""Shares: every number once, each share in a process of its own."""

import os
from collections.abc import Sequence

from utils.training.shares import side_by_side


def squares(numbers: Sequence[int]) -> tuple[int, list[int]]:
    return os.getpid(), [number**2 for number in numbers]


def test_every_number_is_worked_on_once_in_another_process():
    shares = side_by_side(squares, 5)
    assert [values for _, values in shares] == [[0, 4, 16], [1, 9]]
    assert os.getpid() not in {process for process, _ in shares}
