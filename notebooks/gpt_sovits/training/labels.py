"""Labels in training: those without a target, and how many of the others are right."""

from __future__ import annotations

from torch import Tensor

from notebooks.gpt_sovits.pipeline.constants import VERSIONS

PHONEMES = VERSIONS["v2"]  # classes of a phoneme
IGNORED = -100  # the label where there is nothing to predict; PyTorch's default


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of labels [...] with the highest of their logits [..., classes]; IGNORED ones do not count."""
    valid = labels != IGNORED  # [...]
    return (logits.argmax(-1)[valid] == labels[valid]).float().mean()
