"""A small model for the tests: here, the network itself with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from notebooks.new_case import convert, network
from notebooks.new_case.pipeline import MODEL_XML


def pictures(count: int = 3, seed: int = 0) -> np.ndarray:
    """Random pictures, float32 [count, 8, 8]."""
    return np.random.default_rng(seed).random((count, 8, 8), np.float32)


def ir(folder: Path) -> Path:
    """The folder with the IR of a random network."""
    convert.trace(network.random(), folder / MODEL_XML)
    return folder
