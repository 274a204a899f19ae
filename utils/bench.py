"""Measuring: interleaved timings, peak memory in a fresh process, sizes, and the machine's own limits.

Times drift by tens of percent from run to run, so what is compared is measured in turns within one run, and
one benchmark at a time has the machine (`exclusive`). MB and GB are powers of ten.
"""

import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import psutil

from utils import paths, preflight
from utils.locks import alone

PAUSE_S = 0.05  # for other threads to go to sleep
SHORT_MS = 500  # below this, waking threads can take longer than the call
# Set in tests, where other work shares the cores and no timing is kept: every call is timed once, nobody waits, and
# what notebooks measure (`live`) is taken from their results.
ONCE = "BENCH_ONCE"


@dataclass(frozen=True)
class Timing:
    """Samples in ms, in the order they were taken, with their median and 90th percentile."""

    median_ms: float
    p90_ms: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples) -> "Timing":
        samples = tuple(float(sample) for sample in samples)
        if not samples:
            raise ValueError("A timing needs at least one sample.")
        return cls(float(np.median(samples)), float(np.percentile(samples, 90)), samples)


def interleave(callables: Mapping[str, Callable[[], object]], rounds: int = 5, warmup: int = 1) -> dict[str, Timing]:
    """Time each callable once per round, all in turns, after `warmup` unmeasured calls of each.

    The turn starts one callable further in each round, so that none always runs after the same neighbour. Before
    each comes a pause, because a runtime's idle threads go on spinning for a while on the cores of the next, and,
    where a call is short, one unmeasured call, which wakes its own threads.
    """
    labels = list(callables)
    if not labels or rounds < 1:
        raise ValueError(f"Timing needs a callable and a round; got {len(labels)} callables and {rounds} rounds.")
    if os.environ.get(ONCE):
        return {label: Timing.of([_milliseconds(call)]) for label, call in callables.items()}
    for _ in range(warmup):
        for label in labels:
            callables[label]()
    samples: dict[str, list[float]] = {label: [] for label in labels}
    for turn in range(rounds):
        start = turn % len(labels)
        for label in labels[start:] + labels[:start]:
            sleep(PAUSE_S)
            took = _milliseconds(callables[label])
            samples[label].append(took if took > SHORT_MS else _milliseconds(callables[label]))
    return {label: Timing.of(taken) for label, taken in samples.items()}


def live(measure: Callable[..., list[dict]]) -> Callable[..., list[dict]]:
    """Decorate the function whose speed rows a notebook shows: it measures on a quiet machine or not at all.

    In tests (ONCE) it returns the rows of the notebook's results instead, where there are some.
    """
    results = paths.ROOT / "results" / f"{paths.notebook_dir(measure.__module__).name}.json"

    @wraps(measure)
    def measured(*args, **options) -> list[dict]:
        if os.environ.get(ONCE) and results.is_file():
            return json.loads(results.read_text(encoding="utf-8"))["speed"]
        return measure(*args, **options)

    return measured


def _milliseconds(call: Callable[[], object]) -> float:
    begin = perf_counter()
    call()
    return (perf_counter() - begin) * 1e3


def row(
    runtime: str,
    precision: str,
    workload: str,
    timing: Timing,
    *,
    amount: float = 1.0,
    unit: str = "calls/s",
    torch: Timing | None = None,
    peak_rss_mb: float | None = None,
    model_mb: float | None = None,
    label: str | None = None,
) -> dict:
    """A row of the speed table. One call does `amount` of `unit` (48 tokens: `amount=48, unit="tokens/s"`).

    `torch` is the peer's timing on the same workload: the ratio is how many times faster this runtime is.
    `label` says what the numbers are good for, such as "speed only" for weights that are not the released
    ones.
    """
    measured = {
        "runtime": runtime,
        "precision": precision,
        "workload": workload,
        "median_ms": timing.median_ms,
        "p90_ms": timing.p90_ms,
        "throughput": amount * 1e3 / timing.median_ms,
        "unit": unit,
        "ratio_to_torch": None if torch is None else torch.median_ms / timing.median_ms,
        "peak_rss_mb": peak_rss_mb,
        "model_mb": model_mb,
    }
    return measured if label is None else measured | {"label": label}


def peak_rss_mb(function: Callable, *args) -> float:
    """Peak resident memory in MB of a fresh process that calls an importable function and nothing else.

    Interpreter and imports count, as they do for a user; so compare two such numbers, or
    compare it with the model's size. Exceptions of the function are raised in the caller, RuntimeError when the process
    is killed.
    """
    return preflight.in_child(_peak_after, function, args, what=f"Measuring the memory of {function.__name__}")


def _peak_after(function: Callable, args: tuple) -> float:
    function(*args)
    return peak_bytes() / 1e6


def peak_bytes() -> int:
    """The most memory that this process has held so far."""
    # ru_maxrss would not do on Linux: it survives exec, and so reports the peak of the parent
    if platform.system() == "Linux":
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    if platform.system() == "Windows":
        return psutil.Process().memory_info().peak_wset
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def size_mb(path: str | Path) -> float:
    """Size in MB of a file, or of all files below a folder. An IR's .bin counts with its .xml."""
    path = Path(path)
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
    else:
        weights = path.with_suffix(".bin")
        files = [path, weights] if path.suffix == ".xml" and weights.exists() else [path]
    return sum(file.stat().st_size for file in files) / 1e6


def read_bandwidth_gbs() -> float:
    """GB/s at which all cores together read memory: the best of five passes over 1 GB. It bounds token rates.

    One thread per core reduces its own slice; numpy lets go of the interpreter lock while it does. An OR of
    64-bit words computes next to nothing per byte, so the memory is what limits it.
    """
    buffer = np.ones(1 << 27, dtype=np.uint64)
    cores = _cores()
    slices = np.array_split(buffer, cores)
    best = np.inf
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(6):  # the first pass only warms up the threads
            begin = perf_counter()
            list(pool.map(np.bitwise_or.reduce, slices))
            best = min(best, perf_counter() - begin)
    return buffer.nbytes / 1e9 / best


def matmul_gflops(dtype: str = "f32", size: int = 2048) -> float:
    """GFLOP/s of OpenVINO's product of two square matrices at inference precision "f32" or "bf16", best of
    five.

    The limit that prefill and convolutions run into. Where the CPU has no bf16 arithmetic the plugin
    computes in f32, and both numbers agree.
    """
    if dtype not in ("f32", "bf16"):
        raise ValueError(f"dtype is {dtype!r}: say 'f32' or 'bf16'.")
    import openvino as ov
    from openvino import opset13 as ops

    rng = np.random.default_rng(0)
    left = ops.parameter([size, size], np.float32)
    product = ops.matmul(left, ops.constant(rng.standard_normal((size, size), dtype=np.float32)), False, True)
    settings = {"INFERENCE_PRECISION_HINT": dtype, "PERFORMANCE_HINT": "LATENCY"}
    request = ov.Core().compile_model(ov.Model([product], [left]), "CPU", settings).create_infer_request()
    request.infer([rng.standard_normal((size, size), dtype=np.float32)])
    best = min(interleave({"product": request.infer}, rounds=5)["product"].samples)
    return 2 * size**3 / 1e6 / best


@cache
def torch_precision() -> str:
    """The precision at which PyTorch is faster on this processor, "BF16" or "FP32".

    Without BF16 arithmetic, PyTorch emulates it in FP32, many times slower.
    """
    import openvino as ov

    return "BF16" if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "FP32"


def torch_precisions() -> tuple[str, ...]:
    """The precisions at which PyTorch is timed: "FP32", and "BF16" where that is faster."""
    return tuple(dict.fromkeys(("FP32", torch_precision())))


def arithmetic(precision: str) -> str:
    """The name of an IR's precision in rows: with FP16 weights, OpenVINO computes in BF16 where the processor can."""
    return "BF16" if precision == "FP16" and torch_precision() == "BF16" else precision


@contextmanager
def exclusive(lock: str | Path | None = None) -> Iterator[dict]:
    """Let one benchmark at a time run on this machine: wait for the lock, then yield the load at the start.

    The dict has `background_cpu_percent` (of all cores, over half a second) and `background_load`
    (processes that ran or waited, averaged over a minute). `lock` is a file; the default lies in the
    system's temporary folder.
    """
    lock = Path(lock or Path(tempfile.gettempdir()) / "openvino-notebooks-bench.lock")
    waiting = f"Another benchmark is running (it holds {lock}): waiting for it to end."
    # Other users of the machine wait for each other, too.
    with nullcontext() if os.environ.get(ONCE) else alone(lock, waiting, mode=0o666):
        yield {
            "background_cpu_percent": psutil.cpu_percent(interval=0.5),
            "background_load": round(psutil.getloadavg()[0], 2),
        }


def machine() -> dict:
    """cpu (model name), cores and ram_gb (that this process may use), and os of this machine."""
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "ram_gb": round(preflight.total_gb(), 1),
        "os": platform.platform(terse=True),
    }


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # a container may own fewer than the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
