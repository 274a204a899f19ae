"""Measuring: settings compared with PyTorch, interleaved timings, peak memory, sizes, and the machine's own limits.

Times drift by tens of percent from run to run, so what is compared is measured alternately within one run, each setting
in a process of its own (`compare`), and one benchmark at a time has a quiet machine (`exclusive`). MB and GB are powers
of ten.
"""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial, wraps
from pathlib import Path
from time import monotonic, perf_counter, sleep

import numpy as np
import psutil
from tqdm import tqdm

from utils import paths, preflight
from utils.compare import is_pytorch
from utils.locks import alone

PAUSE_S = 0.05  # for other threads to go to sleep
PROCESS_PAUSE_S = 0.25  # the same between processes: threads of OpenMP spin for 0.2 s
SHORT_MS = 500  # below this, waking threads can take longer than the call
BUSY_PERCENT = 20  # where other programs use more of the cores, nothing is measured
PATIENCE_S = 600  # how long to wait for a quiet machine
EXTENSIONS = {  # flags of Linux that decide which arithmetic is fast
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX VNNI",
    "avx512_bf16": "BF16",
    "amx_bf16": "AMX BF16",
    "amx_int8": "AMX INT8",
}
WIDTHS = ("INT4", "INT8", "FP16", "BF16", "FP32")  # precisions, the narrowest first
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


class Busy(RuntimeError):
    """Other programs use the machine, so that timings would be worth nothing."""


def interleave(callables: Mapping[str, Callable[[], object]], rounds: int = 5, warmup: int = 1) -> dict[str, Timing]:
    """Time each callable once per round, alternately, after `warmup` unmeasured rounds.

    Each round starts one callable further, so that none always runs after the same neighbour. Before each comes a
    pause, because a runtime's idle threads go on spinning for a while on the cores of the next, and, where a call is
    short, one unmeasured call, which wakes its own threads.
    """
    return _alternately({label: partial(_sample, call) for label, call in callables.items()}, rounds, warmup, PAUSE_S)


def _alternately(samplers: Mapping, rounds: int, warmup: int, pause_s: float) -> dict:
    """The timings of functions that take a sample in ms each, by their keys."""
    labels = list(samplers)
    if not labels or rounds < 1:
        raise ValueError(f"Timing needs a callable and a round; got {len(labels)} callables and {rounds} rounds.")
    if os.environ.get(ONCE):
        return {label: Timing.of([sampler()]) for label, sampler in samplers.items()}
    for label in labels * warmup:
        samplers[label]()
    samples: dict = {label: [] for label in labels}
    for turn in range(rounds):
        start = turn % len(labels)
        for label in labels[start:] + labels[:start]:
            sleep(pause_s)
            samples[label].append(samplers[label]())
    return {label: Timing.of(taken) for label, taken in samples.items()}


def _sample(call: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
    """Milliseconds of a call; of a short one the second call, because the first one wakes its threads."""
    prepare()
    took = _milliseconds(call)
    if took > SHORT_MS or os.environ.get(ONCE):
        return took
    prepare()
    return _milliseconds(call)


def _milliseconds(call: Callable[[], object]) -> float:
    begin = perf_counter()
    call()
    return (perf_counter() - begin) * 1e3


# --- Comparing ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """What is timed. One call does `amount` of `unit` (48 tokens: `amount=48, unit="tokens/s"`)."""

    name: str
    amount: float = 1.0
    unit: str = "calls/s"


@dataclass(frozen=True)
class Prepared:
    """A call before which something has to be done each time that is not timed, such as reading a prompt."""

    prepare: Callable[[], object]
    call: Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """A runtime at a precision, for `compare`.

    start: an importable function. It is called with `arguments` in the process of this setting, loads the model, and
    returns the workloads that this setting can do: for each name a function without arguments, or a `Prepared` one.
    accepted: whether the results pass the quality table. A setting of PyTorch that fails there is timed, but it is not
    what others are compared with.
    """

    runtime: str
    precision: str
    start: Callable[..., Mapping[str, Callable[[], object] | Prepared]]
    arguments: tuple = ()
    model_mb: float | None = None
    accepted: bool = True


def compare(
    settings: Sequence[Setting],
    workloads: Sequence[Workload],
    rounds: int = 5,
    warmup: int = 1,
    label: str | None = None,
    memory: bool = True,
    together: bool = True,
) -> list[dict]:
    """Speed rows of all settings, each in a process of its own on the same cores.

    The processes live at the same time and are timed alternately; one works while the others wait, because the threads
    of several runtimes in one process would disturb each other. With together=False one process ends before the next
    begins, which takes little memory. `ratio_to_torch` is the median of the fastest accepted setting of PyTorch divided
    by that of the row. `ratio_at_precision` is the same ratio to PyTorch at the row's own precision. Settings that are
    not accepted have `accepted` False. `peak_rss_mb` is the most memory that the process has held so far; memory=False
    leaves it out, where `start` loads more than the runtime needs. label: what the numbers are good for, such as
    "random weights, speed only". In tests (ONCE) every call is timed once, in this process. Raises ValueError for a
    workload that no setting has.
    """
    timings: dict[str, dict[Setting, Timing]] = {workload.name: {} for workload in workloads}
    peaks_mb: dict[tuple[str, Setting], float] = {}
    known: dict[str, None] = {}
    for group in [settings] if together else tqdm([[setting] for setting in settings], desc="timed", disable=None):
        with ExitStack() as stack:
            processes = {setting: _process(stack, setting) for setting in group}
            names = {setting: process(_start, setting) for setting, process in processes.items()}
            known |= dict.fromkeys(name for own in names.values() for name in own)
            for work, measured in timings.items():
                samplers = {s: partial(process, _time, s, work) for s, process in processes.items() if work in names[s]}
                if samplers:
                    measured |= _alternately(samplers, rounds, warmup, PROCESS_PAUSE_S)
                    peaks_mb |= {(work, setting): processes[setting](peak_bytes) / 1e6 for setting in samplers}
    if missing := [work for work, measured in timings.items() if not measured]:
        raise ValueError(f"No setting has the workload {missing[0]!r}. There are: {', '.join(known)}.")
    rows = []
    for workload in workloads:
        for setting, timing in timings[workload.name].items():
            work = {"amount": workload.amount, "unit": workload.unit, "label": label}
            sizes = {"peak_rss_mb": peaks_mb[workload.name, setting] if memory else None, "model_mb": setting.model_mb}
            measured = row(setting.runtime, setting.precision, workload.name, timing, **work, **sizes)
            ratios = _ratios(setting, timings[workload.name])
            rows.append(measured | ratios | ({} if setting.accepted else {"accepted": False}))
    return rows


# The workloads of the settings that run in this process
_STARTED: dict[Setting, Mapping[str, Callable[[], object] | Prepared]] = {}


def _process(stack: ExitStack, setting: Setting) -> Callable:
    """A function that calls a function with arguments in the process of a setting; in tests that is this process."""
    if os.environ.get(ONCE):
        stack.callback(_STARTED.pop, setting, None)
        return lambda function, *arguments: function(*arguments)
    log = stack.enter_context(tempfile.TemporaryFile())  # progress bars and warnings are no output of a notebook

    def call(function: Callable, *arguments):
        try:
            return child.call(function, *arguments)
        except RuntimeError as error:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
            error.add_note(f"The process printed last:\n{log.read().decode(errors='replace')}")
            raise

    child = stack.enter_context(preflight.Child(f"Timing {setting.runtime} at {setting.precision}", log=log))
    return call


def _start(setting: Setting) -> list[str]:
    _STARTED[setting] = setting.start(*setting.arguments)
    return list(_STARTED[setting])


def _time(setting: Setting, workload: str) -> float:
    work = _STARTED[setting][workload]
    return _sample(work.call, work.prepare) if isinstance(work, Prepared) else _sample(work)


def _ratios(setting: Setting, timings: Mapping[Setting, Timing]) -> dict[str, float | None]:
    """How many times faster a setting is than PyTorch: than its fastest accepted one, and at the same precision."""
    torch = [peer for peer in timings if is_pytorch({"runtime": peer.runtime})]
    groups = {
        "ratio_to_torch": [timings[peer].median_ms for peer in torch if peer.accepted],
        "ratio_at_precision": [timings[peer].median_ms for peer in torch if peer.precision == setting.precision],
    }
    own = timings[setting].median_ms
    return {name: min(medians) / own if medians else None for name, medians in groups.items()}


def explain(rows: Iterable[Mapping], whole: str, parts: Mapping[str, float], tolerance: float = 0.15) -> None:
    """Check that the stages of `whole` take as long together as the whole; parts: see `stage_shares`.

    Raises ValueError that names the longest stage where the sum is not within `tolerance` of the whole: something is
    not measured, or is measured otherwise than it runs. Raises ValueError, too, where no setting has all stages. A
    benchmark writes its rows before it calls this, so that nothing is lost.
    """
    found = _stages(rows, whole, parts)
    if not found:
        raise ValueError(f"No setting has {whole!r} and all its stages: {', '.join(parts)}. Measure them all.")
    for name, (took, stages) in found.items():
        share = round(sum(stages.values()) / took, 2)
        if abs(share - 1) > tolerance:
            longest = max(stages, key=stages.get)
            raise ValueError(
                f"The stages of {name} take {share} of {whole} ({took:.4g} ms). The longest is {longest} with "
                f"{stages[longest]:.4g} ms. Measure them with the shapes and state of the whole."
            )


def stage_shares(rows: Iterable[Mapping], whole: str, parts: Mapping[str, float], what: str) -> dict[str, float]:
    """Notes about `what`, such as "tiny": the share of the time of `whole` that its stages take together.

    parts: how often each stage's workload runs in the whole. Where a precision changes nothing about a stage, and so
    has no row of it, the row of the next wider precision counts. Settings that lack a stage are left out.
    """
    return {
        f"{what}, stages together, share of the whole, {name}": round(sum(stages.values()) / took, 2)
        for name, (took, stages) in _stages(rows, whole, parts).items()
    }


def _stages(
    rows: Iterable[Mapping], whole: str, parts: Mapping[str, float]
) -> dict[str, tuple[float, dict[str, float]]]:
    """The ms of the whole and of its stages by "runtime precision"."""
    found = {}
    medians: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        medians.setdefault((row["runtime"], row["precision"]), {})[row["workload"]] = row["median_ms"]
    for (runtime, precision), own in medians.items():
        known: dict[str, float] = {}
        for wider in reversed(WIDTHS[WIDTHS.index(precision) :] if precision in WIDTHS else (precision,)):
            known |= medians.get((runtime, wider), {})
        if whole in own and known.keys() >= parts.keys():
            found[f"{runtime} {precision}"] = own[whole], {part: known[part] * count for part, count in parts.items()}
    return found


def live(measure: Callable[..., list[dict]]) -> Callable[..., list[dict]]:
    """Decorate the function whose speed rows a notebook shows: it measures on a quiet machine or not at all.

    In tests (ONCE) it returns the rows of the notebook's results instead, where there are some.
    """
    module = measure.__module__
    if module == "__main__":  # `python -m notebooks.<case>.measuring`
        module = sys.modules[module].__spec__.name
    results = paths.ROOT / "results" / f"{paths.notebook_dir(module).name}.json"

    @wraps(measure)
    def measured(*args, **options) -> list[dict]:
        if os.environ.get(ONCE) and results.is_file():
            return json.loads(results.read_text(encoding="utf-8"))["speed"]
        return measure(*args, **options)

    return measured


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
def exclusive(lock: str | Path | None = None, busy_percent: float = BUSY_PERCENT) -> Iterator[dict]:
    """Let one benchmark at a time run, and only on a quiet machine: wait, then yield the load at the start.

    The dict has `background_cpu_percent` (of all cores, over a second) and `background_load` (processes that ran or
    waited, averaged over a minute). `lock` is a file; the default lies in the system's temporary folder. Raises Busy
    where other programs use more than `busy_percent` of the cores for PATIENCE_S. In tests (ONCE) nobody waits.
    """
    if os.environ.get(ONCE):
        yield _load()
        return
    lock = Path(lock or Path(tempfile.gettempdir()) / "openvino-notebooks-bench.lock")
    waiting = f"Another benchmark is running (it holds {lock}): waiting for it to end."
    with alone(lock, waiting, mode=0o666):  # other users of the machine wait for each other, too
        begin = monotonic()
        while (load := _load())["background_cpu_percent"] > busy_percent:
            used = f"other programs use {load['background_cpu_percent']:.0f} % of the cores"
            if monotonic() - begin > PATIENCE_S:
                raise Busy(f"Nothing is measured: {used}, and at most {busy_percent:.0f} % are allowed. Close them.")
            print(f"Waiting for a quiet machine: {used}.", file=sys.stderr)
            sleep(10)
        yield load


def _load() -> dict:
    percent = psutil.cpu_percent(interval=1.0)
    return {"background_cpu_percent": percent, "background_load": round(psutil.getloadavg()[0], 2)}


def machine() -> dict:
    """cpu (name and extensions), cores and ram_gb (that this process may use), and os of this machine."""
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
    """The processor: its name, and on Linux family, model and extensions, since one name stands for several of them."""
    if platform.system() != "Linux":
        return platform.processor() or platform.machine()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    info = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    if "model name" not in info:
        return platform.machine()
    flags = [name for flag, name in EXTENSIONS.items() if flag in info.get("flags", "").split()]
    return f"{info['model name']} (family {info['cpu family']}, model {info['model']}: {', '.join(flags)})"
