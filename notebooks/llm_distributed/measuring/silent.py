"""A rank that leaves the all-reduce out, which is a mistake: the negative control of the quality table."""

from __future__ import annotations

import sys

import numpy as np

from notebooks.llm_distributed.pipeline import worker
from notebooks.llm_distributed.pipeline.group import TcpGroup


class SilentGroup(TcpGroup):
    """Each rank goes on with its own summand."""

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        return array


if __name__ == "__main__":
    sys.exit(worker.main(SilentGroup))
