"""Work that two processes share: speech and pictures for a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

PROCESSES = 2
Result = TypeVar("Result")


def side_by_side(work: Callable[[Sequence[int]], Result], count: int) -> list[Result]:
    """What `work` returns for each process's share of the numbers below `count`: even and odd ones.

    Shares are fixed and processes new, so that a library whose output depends on earlier calls gives the same again.
    """
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        return [*pool.map(work, [range(k, count, PROCESSES) for k in range(PROCESSES)])]
