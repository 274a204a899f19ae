"""AUC and log-loss, the two numbers by which click-through models are judged. Numpy alone."""

from __future__ import annotations

import numpy as np


def auc(clicked: np.ndarray, scores: np.ndarray) -> float:
    """The chance that a clicked row scores above one that was not, ties counting half. Both [n].

    From the sum of ranks (Mann-Whitney U). Raises ValueError unless there are rows of both kinds.
    """
    clicked = np.asarray(clicked, bool)
    if clicked.all() or not clicked.any():
        raise ValueError("AUC compares clicked rows with others, and there is only one kind. Give it both.")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # from 1; equal scores share the mean of their ranks
    positives, negatives = clicked.sum(), (~clicked).sum()
    return float((ranks[clicked].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def log_loss(clicked: np.ndarray, scores: np.ndarray) -> float:
    """Mean negative logarithm of the probability given to what happened, in nats. Both [n]."""
    probability = np.where(clicked, scores, 1 - np.asarray(scores, np.float64))
    return float(-np.log(np.clip(probability, 1e-7, 1)).mean())
