"""Pictures of handwritten digits, which come with scikit-learn; the last 360 are held out of training."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits

HELD_OUT = 360


class Digits(NamedTuple):
    pictures: np.ndarray  # float32 [n, 8, 8], from 0 (paper) to 1 (ink)
    labels: np.ndarray  # int64 [n], 0 to 9


@cache
def training_set() -> Digits:
    """What training and calibration see."""
    return Digits(*(array[:-HELD_OUT] for array in _all()))


@cache
def held_out() -> Digits:
    """What the model is examined on."""
    return Digits(*(array[-HELD_OUT:] for array in _all()))


def _all() -> Digits:
    digits = load_digits()
    return Digits((digits.images / 16).astype(np.float32), digits.target.astype(np.int64))
