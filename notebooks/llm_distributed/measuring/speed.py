"""Time per token of ranks and of one process, the memory of each rank, and where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil

from notebooks.llm_distributed.measuring import cost, quality
from notebooks.llm_distributed.pipeline.ranks import Ranks
from notebooks.llm_distributed.pipeline.stages import Run, Stages
from utils import bench
from utils.models import llm_speed
from utils.models.llm import FP32_PROPERTIES
from utils.models.llm_speed import DECODE

ONE_CORE, TWO_CORES, RANKS = (
    "openvino, 1 process, 1 core",
    "openvino, 1 process, 2 cores",
    "openvino, 2 ranks of 1 core",
)
WORKLOADS = [bench.Workload(DECODE, llm_speed.DECODE_TOKENS, "tokens/s")]
SPLIT_TOKENS = 48
SPLIT_RANKS, SILENT_RANKS = "2 ranks of 1 core", "2 ranks that exchange nothing"


def layouts() -> dict[str, tuple[tuple[int, ...], ...]]:
    """The cores of each process, by the name of the setting."""
    first, second = cores()
    return {TWO_CORES: ((first, second),), ONE_CORE: ((first,),), RANKS: ((first,), (second,))}


def cores() -> list[int]:
    """The first two cores of this process. Raises ValueError where there are fewer, or no way to choose them."""
    found = sorted(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else []
    if len(found) < 2:
        raise ValueError("Two ranks are timed on two cores. Run this where a process can choose at least two cores.")
    return found[:2]


def start(folders: Sequence[Path], own_cores: Sequence[Sequence[int]]) -> dict[str, Callable]:
    """The workload of `llm_speed` on ranks, with FP32 arithmetic. A `start` of bench.Setting."""
    ranks = Ranks(folders, own_cores, timeout_s=60, **FP32_PROPERTIES)

    def generate(ids: np.ndarray, count: int) -> None:
        for _ in ranks.generate(ids[0], count):
            pass

    return {DECODE: llm_speed.workloads(generate)[DECODE]}


def settings(whole: dict[str, Path], shares: dict[str, Sequence[Path]]) -> list[bench.Setting]:
    """One process on one and on two cores, and two ranks. whole: folder by precision; shares: those of two ranks.

    Arithmetic is in FP32, whatever the precision of the weights.
    """
    found = []
    for precision, folders in shares.items():
        for name, own in layouts().items():
            files = folders if name == RANKS else [whole[precision]]
            size = sum(llm_speed.weights_mb(folder) for folder in files)
            found.append(bench.Setting(name, precision, start, (tuple(files), own), size))
    return found


@bench.live
def measure(whole: dict[str, Path], shares: dict[str, Sequence[Path]], checkpoint: Path, rounds: int = 5) -> list[dict]:
    """Speed rows of `settings` and of PyTorch."""
    everything = settings(whole, shares) + llm_speed.torch_settings(checkpoint)
    return bench.compare(everything, WORKLOADS, rounds, memory=False)


def memory(folders: Sequence[Path], prompt: Sequence[int]) -> list[dict]:
    """For each rank, in MB: weights (as stored), cache after `prompt` and 16 tokens, and private (of its process)."""
    with Ranks(folders, timeout_s=60, **FP32_PROPERTIES) as ranks:
        *_, last = ranks.generate(prompt, 16)
        private = [psutil.Process(pid).memory_full_info().uss / 1e6 for pid in ranks.pids]
        return [
            {"weights_mb": held["weights_mb"], "cache_mb": cache, "private_mb": own}
            for held, cache, own in zip(ranks.held, last.cache_mb, private, strict=True)
        ]


def split(folders: Sequence[Path], prompt: Sequence[int], own_cores=None, count: int = SPLIT_TOKENS, **options) -> dict:
    """Medians for a token after the first, by rank: ms, group_ms (in the group), calls and bytes_sent.

    options: further ones of `Ranks`.
    """
    with Ranks(folders, own_cores, timeout_s=60, **FP32_PROPERTIES | options) as ranks:
        steps = list(ranks.generate(prompt, count))[1:]
    fields = ("ms", "group_ms", "calls", "bytes_sent")
    return {field: np.median([getattr(step, field) for step in steps], 0).tolist() for field in fields}


def splits(whole: Path, halves: Sequence[Path], prompt: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """`split` of one process, and of two ranks: as they should be, without exchanges, on cores that OpenVINO chose."""
    (both,), (one,), two = layouts().values()
    return {
        "1 process, 2 cores": split([whole], prompt, [both]),
        "1 process, 1 core": split([whole], prompt, [one]),
        SPLIT_RANKS: split(halves, prompt, two),
        SILENT_RANKS: split(halves, prompt, two, module=quality.SILENT),
        "2 ranks, default pinning": split(halves, prompt, [[], []], 8, INFERENCE_NUM_THREADS=1),
    }


def in_flight(folders: Sequence[Path], prompts: Sequence[Sequence[int]], count: int) -> Run:
    """What stages do with all prompts in flight at once."""
    with Stages(folders, timeout_s=60, **FP32_PROPERTIES) as stages:
        return stages.run(prompts, count)


def link() -> dict[int, float]:
    """Seconds of an all-reduce between two processes on a core each, by bytes."""
    return cost.measure_link(cores=cores())


def memory_notes(memory: Mapping[str, Sequence[Mapping]]) -> dict[str, float]:
    """Memory by layout and rank, as notes of the results."""
    named = {}
    for layout, rows in memory.items():
        for rank, row in enumerate(rows):
            for field, label in (("private_mb", "private MB"), ("weights_mb", "MB of weights")):
                named[f"{label}, {layout}, rank {rank}"] = round(row[field], 1)
    return named


def split_notes(found: Mapping[str, Mapping]) -> dict[str, float]:
    """What `splits` found, as notes of the results."""
    named = {}
    for layout, own in found.items():
        for field, label in (("ms", "ms of a token"), ("group_ms", "of these in the group")):
            named[f"{label}, {layout}"] = round(max(own[field]), 2)
    last = found[SPLIT_RANKS]
    return named | {
        "exchanges for a token": last["calls"][0],
        "bytes sent by a rank for a token": last["bytes_sent"][0],
    }
