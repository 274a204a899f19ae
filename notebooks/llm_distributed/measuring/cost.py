"""The model on paper: what a token costs on several sockets or machines, from measured parts.

    time of a token = weights / (ranks * bandwidth of memory) + calls * (call + latency + bytes / bandwidth of the link)

`measure_link` measures exchanges between processes, `Link.fit` finds latency and bandwidth, and `measure_call` is what
OpenVINO takes to call an operation in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import psutil

from notebooks.llm_distributed.pipeline import group
from notebooks.llm_distributed.pipeline.graph import AllReduce
from utils import preflight

SIZES = (1, 144, 576, 2_304, 9_216, 36_864, 147_456, 589_824)  # float32 numbers in an all-reduce
CALLS = 300
MEMORY_BYTES_PER_S = 200e9  # of each socket or machine on paper: an assumption


@dataclass(frozen=True)
class Link:
    """Seconds that an all-reduce takes at least, and bytes of an array that it adds in a second."""

    latency_s: float
    bytes_per_s: float

    @classmethod
    def fit(cls, measured: dict[int, float]) -> Link:
        """measured: seconds by bytes. The line with the least relative error, so that small arrays count, too."""
        sizes, seconds = (np.array(list(values), float) for values in (measured, measured.values()))
        lines = np.stack([np.ones_like(sizes), sizes], 1) / seconds[:, None]
        latency, per_byte = np.linalg.lstsq(lines, np.ones_like(sizes), rcond=None)[0]
        return cls(max(latency, 1e-9), 1 / max(per_byte, 1e-15))

    def seconds(self, size: float) -> float:
        """Of an all-reduce of `size` bytes."""
        return self.latency_s + size / self.bytes_per_s


@dataclass(frozen=True)
class Size:
    """A model on paper. bytes_read: weights that a token reads; hidden: numbers in the residual stream."""

    name: str
    bytes_read: float
    layers: int
    hidden: int


# 16-bit weights that a token reads, of models with these sizes: layers times (attention + MLP), and the output layer.
SIZES_ON_PAPER = (
    Size("1.5 billion (Qwen2.5)", 2 * 1.54e9, 28, 1536),
    Size("7 billion (Llama 2)", 2 * 6.61e9, 32, 4096),
    Size("70 billion (Llama 2)", 2 * 68.7e9, 80, 8192),
)


def token_seconds(size: Size, ranks: int, bytes_per_s: float, link: Link, call_s: float = 0.0) -> float:
    """What a token takes on `ranks` sockets or machines, each with a memory of `bytes_per_s`.

    call_s: of `measure_call`.

    Behind attention and behind the MLP of each layer stands an all-reduce of `hidden` float32 numbers, and one more
    behind the embedding. A ring or a tree of many ranks has more steps; the latency grows with the logarithm of ranks.
    """
    compute = size.bytes_read / (ranks * bytes_per_s)
    if ranks == 1:
        return compute
    steps = np.log2(ranks)  # as in recursive doubling
    return compute + (2 * size.layers + 1) * (call_s + steps * link.seconds(4 * size.hidden))


def speedup_notes(link: Link, call_s: float = 0.0) -> dict[str, float]:
    """Modelled speed-ups of SIZES_ON_PAPER over a link, where each rank reads MEMORY_BYTES_PER_S, as notes."""
    notes = {}
    for size in SIZES_ON_PAPER:
        alone = token_seconds(size, 1, MEMORY_BYTES_PER_S, link)
        for ranks in (2, 4, 8):
            speedup = alone / token_seconds(size, ranks, MEMORY_BYTES_PER_S, link, call_s)
            notes[f"modelled speed-up, {size.name} parameters, {ranks} ranks"] = round(speedup, 2)
    return notes


def measure_link(sizes: Sequence[int] = SIZES, calls: int = CALLS, cores: Sequence[int] = ()) -> dict[int, float]:
    """Seconds of an all-reduce between two processes, by bytes: the median of `calls` calls. cores: one for each."""
    listeners = [group.listen() for _ in range(2)]
    addresses = [f"{group.LOOPBACK}:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:  # the two processes listen at the same ports
        listener.close()
    with ThreadPoolExecutor(2) as pool:
        run = partial(preflight.in_child, time_calls)
        places = [list(cores[rank : rank + 1]) for rank in range(2)]
        found = pool.map(run, range(2), [addresses] * 2, [sizes] * 2, [calls] * 2, places)
        return next(iter(found))


def time_calls(rank: int, addresses: list[str], sizes: Sequence[int], calls: int, cores: list[int]) -> dict[int, float]:
    """What one of the two processes of `measure_link` does."""
    import socket

    if cores:
        psutil.Process().cpu_affinity(cores)
    host, _, port = addresses[rank].rpartition(":")
    listener = socket.create_server((host, int(port)))
    own = group.TcpGroup(rank, listener, addresses, bytes(32), timeout_s=30)
    found = {}
    for size in sizes:
        array, times = np.ones(size, np.float32), []
        for _ in range(calls):
            begin = perf_counter()
            own.all_reduce(array)
            times.append(perf_counter() - begin)
        found[array.nbytes] = float(np.median(times[calls // 5 :]))
    own.close()
    return found


def measure_call(hidden: int, calls: int = CALLS) -> float:
    """Seconds that OpenVINO takes to call an AllReduce in Python and to come back, where it has nothing to wait for.

    hidden: numbers in the array.
    """
    AllReduce.group = group.TcpGroup(0, group.listen(), [group.LOOPBACK], bytes(32))  # of one rank
    x = ops.parameter([-1, -1, hidden], np.float32)
    model = ov.Model([AllReduce([x.output(0)])], [x])
    properties = {"PERF_COUNT": True, "INFERENCE_NUM_THREADS": 1}
    request = ov.Core().compile_model(model, "CPU", properties).create_infer_request()
    for _ in range(calls):
        request.infer([np.ones((1, 1, hidden), np.float32)])
    times = [info.real_time for info in request.profiling_info if info.node_type == "Reference"]  # means of all calls
    return times[0].total_seconds()


def notes(link: Link, call_s: float, predicted_ms: float) -> dict[str, float]:
    """What was fitted and predicted, as notes of the results."""
    return {
        "call of an operation in Python, us": round(1e6 * call_s, 1),
        "all-reduce over TCP, latency in us": round(1e6 * link.latency_s, 1),
        "all-reduce over TCP, GB/s": round(link.bytes_per_s / 1e9, 2),
        "ms of a token, 2 ranks of 1 core, predicted": round(predicted_ms, 2),
    }
