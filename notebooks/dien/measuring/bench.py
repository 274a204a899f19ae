"""Measures the speed of DIEN, of PyTorch and of ONNX Runtime.

The notebook runs `live`, which measures the tiny model. All other measurements take minutes, and the notebook reads
them from the file that `main` writes, results/bench/dien.json: histories of 100 items, the released size, true
lengths, throughput mode, compile times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import openvino as ov
import torch

from notebooks.dien import convert, data
from notebooks.dien.convert import LENGTH
from notebooks.dien.network import DIEN, INPUTS, Config
from notebooks.dien.pipeline import ClickModel
from utils import bench, report

RELEASED = Config(543_060, 367_983, 1601)  # Amazon Books: 16.4 million embedding values
BATCHES = (1, 128, 1024)
Run = Callable[[dict[str, np.ndarray]], object]
Workloads = dict[str, Callable[[], object]]
Source = str | Config  # a model of the collection, or the sizes of one with random weights


def load(source: Source) -> DIEN:
    """A model with its trained weights, or one with random weights."""
    return random_network(source) if isinstance(source, Config) else convert.load(source)


def config_of(source: Source) -> Config:
    """The sizes of a model."""
    return source if isinstance(source, Config) else convert.load(source).config


def random_batch(config: Config, rows: int, length: int) -> dict[str, np.ndarray]:
    """A random batch by input name; every history has `length` items."""
    rng = np.random.default_rng(rows)
    single = [rng.integers(1, size, rows) for size in (config.n_uid, config.n_mid, config.n_cat)]
    histories = [rng.integers(1, size, (rows, length)) for size in (config.n_mid, config.n_cat)]
    arrays = (*single, *histories, np.ones((rows, length), np.float32), np.full(rows, length))
    return dict(zip(INPUTS, arrays, strict=True))


def random_network(config: Config) -> DIEN:
    """A network with random weights, of use only for speed and for comparing computations."""
    torch.manual_seed(0)
    network = DIEN(config).eval()
    for parameter in network.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))  # a bias of 0 would be removed from the graph
    return network


def eager(network: DIEN) -> Run:
    """PyTorch as it is."""

    def run(batch: dict[str, np.ndarray]) -> None:
        with torch.inference_mode():
            network(*(torch.from_numpy(batch[name]) for name in INPUTS))

    return run


def autocast(network: DIEN) -> Run:
    """PyTorch, whose matrix products are in BF16."""
    run = eager(network)

    def with_autocast(batch: dict[str, np.ndarray]) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            run(batch)

    return with_autocast


def scripted(network: DIEN, length: int) -> Run:
    """TorchScript, traced for one length and frozen."""
    example = random_batch(network.config, 2, length)
    with torch.no_grad():
        traced = torch.jit.trace(network, tuple(torch.from_numpy(example[name]) for name in INPUTS), check_trace=False)
        frozen = torch.jit.freeze(traced)

    def run(batch: dict[str, np.ndarray]) -> None:
        with torch.inference_mode():
            frozen(*(torch.from_numpy(batch[name]) for name in INPUTS))

    return run


def compiled(network: DIEN) -> Run:
    """torch.compile, for any batch. Compiling takes minutes, so only `main` does it."""
    graph = torch.compile(network, dynamic=True)

    def run(batch: dict[str, np.ndarray]) -> None:
        with torch.inference_mode():
            graph(*(torch.from_numpy(batch[name]) for name in INPUTS))

    return run


def onnx(network: DIEN, length: int, folder: Path) -> Run:
    """ONNX Runtime on the network, exported for one length, with all cores and optimizations (its default)."""
    import onnxruntime

    path = folder / f"dien-{length}.onnx"
    example = random_batch(network.config, 2, length)
    with torch.no_grad():
        torch.onnx.export(
            network,
            tuple(torch.from_numpy(example[name]) for name in INPUTS),
            str(path),
            input_names=list(INPUTS),
            output_names=["y_hat", "attention"],
            dynamic_axes={name: {0: "batch"} for name in (*INPUTS, "y_hat", "attention")},
            dynamo=False,
        )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, batch)


def batch_sizes(
    source: Source,
    paths: dict[str, Path],
    length: int,
    batches: tuple[int, ...],
    rounds: int,
    compiling: bool = False,
    label: str | None = None,
) -> list[dict]:
    """Speed rows: one batch of full histories at each batch size, every runtime in a process of its own.

    paths: precision -> IR. compiling: whether torch.compile is among the runtimes.
    """
    sizes = (source, length, batches)
    settings = [
        bench.Setting("torch eager", "FP32", start_torch, (eager, *sizes)),
        bench.Setting("torch eager", "BF16", start_torch, (autocast, *sizes)),
        bench.Setting("torchscript", "FP32", start_scripted, sizes),
        bench.Setting("onnxruntime", "FP32", start_onnx, sizes),
    ]
    if compiling:
        settings.append(bench.Setting("torch.compile", "FP32", start_torch, (compiled, *sizes)))
    for precision, path in paths.items():
        hints = {precision: "f32"} | ({"BF16": "bf16"} if precision == "FP32" else {})
        for name, hint in hints.items():
            settings.append(bench.Setting("openvino", name, start_openvino, (path, hint, *sizes), bench.size_mb(path)))
    workloads = [bench.Workload(f"history {length}, batch {batch}", batch, "rows/s") for batch in batches]
    return bench.compare(settings, workloads, rounds, warmup=2, label=label)


def start_torch(kind: Callable[[DIEN], Run], source: Source, length: int, batches: tuple[int, ...]) -> Workloads:
    """The workloads of PyTorch: eager, in BF16 or compiled."""
    network = load(source)
    return full_histories(kind(network), network.config, length, batches)


def start_scripted(source: Source, length: int, batches: tuple[int, ...]) -> Workloads:
    """The workloads of TorchScript."""
    network = load(source)
    return full_histories(scripted(network, length), network.config, length, batches)


def start_onnx(source: Source, length: int, batches: tuple[int, ...]) -> Workloads:
    """The workloads of ONNX Runtime."""
    network = load(source)
    with TemporaryDirectory() as scratch:
        run = onnx(network, length, Path(scratch))
    return full_histories(run, network.config, length, batches)


def start_openvino(path: Path, hint: str, source: Source, length: int, batches: tuple[int, ...]) -> Workloads:
    """The workloads of OpenVINO. hint: the arithmetic, "f32" or "bf16"."""
    model = ClickModel(path, INFERENCE_PRECISION_HINT=hint)
    return full_histories(model.infer, config_of(source), length, batches)


def full_histories(run: Run, config: Config, length: int, batches: tuple[int, ...]) -> Workloads:
    """A workload for each batch size, by name."""
    arrays = {batch: random_batch(config, batch, length) for batch in batches}
    return {f"history {length}, batch {batch}": partial(run, arrays[batch]) for batch in batches}


@bench.live
def live(model: str, paths: dict[str, Path], length: int, rounds: int = 5) -> list[dict]:
    """Speed rows that the notebook measures: a model at its own length. paths: precision -> IR."""
    return batch_sizes(model, paths, length, (1, 128), rounds)


TRUE_LENGTHS = f"1024 rows, true lengths up to {LENGTH}"


def true_lengths(ir: Path, rounds: int) -> list[dict]:
    """Speed rows for histories with the lengths of MovieLens: cut graphs, one graph for all lengths, and a loop."""
    loop = convert.convert_loop(convert.load("tiny"), ir.with_name("loop.xml"))
    settings = [
        bench.Setting("openvino, cut graphs (score, with its checks)", "FP32", start_cut_graphs, (ir,)),
        bench.Setting("openvino, one graph of 100", "FP32", start_one_graph, (ir,)),
        bench.Setting("openvino, loop", "FP32", start_loop, (loop,)),
        bench.Setting("torch eager", "FP32", start_eager_in_parts),
    ]
    return bench.compare(settings, [bench.Workload(TRUE_LENGTHS, 1024, "rows/s")], rounds)


def start_cut_graphs(ir: Path) -> Workloads:
    batch = movielens_batch()
    ragged = [
        [row[:n] for row, n in zip(batch[name], batch["seq_len"], strict=True)] for name in ("mid_his", "cat_his")
    ]
    model = ClickModel(ir, INFERENCE_PRECISION_HINT="f32")
    return {TRUE_LENGTHS: partial(model.score, *(batch[name] for name in ("uid", "mid", "cat")), *ragged)}


def start_one_graph(ir: Path) -> Workloads:
    return {TRUE_LENGTHS: partial(ClickModel(ir, INFERENCE_PRECISION_HINT="f32").infer, movielens_batch())}


def start_loop(ir: Path) -> Workloads:
    loop = ov.Core().compile_model(ir, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return {TRUE_LENGTHS: partial(in_parts, loop, movielens_batch())}


def start_eager_in_parts() -> Workloads:
    return {TRUE_LENGTHS: partial(in_parts, eager(convert.load("tiny")), movielens_batch())}


def movielens_batch(rows: int = 1024) -> dict[str, np.ndarray]:
    """A random batch whose histories have the lengths of users of MovieLens, in the middle and at the end."""
    rng = np.random.default_rng(0)
    movies = data.movielens()
    whole = np.minimum([len(s) for s in movies.sequences], LENGTH)
    partial_lengths = rng.integers(1, whole + 1)  # users in the middle of their sequences
    lengths = rng.permutation(np.concatenate([partial_lengths, whole]))[:rows]
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.float32)
    return random_batch(Config(*movies.sizes), rows, LENGTH) | {"seq_len": lengths, "mask": mask}


def in_parts(run: Run, batch: dict[str, np.ndarray]) -> None:
    """Run rows sorted by length, 128 at a time, cut to the longest of each: careful use of a network for any length."""
    lengths = batch["seq_len"]
    order = np.argsort(lengths)
    for start in range(0, len(order), 128):
        part = order[start : start + 128]
        run({k: x[part] if x.ndim == 1 else x[part][:, : lengths[part].max()] for k, x in batch.items()})


def streams(ir: Path, config: Config, rounds: int, batch: int = 128, count: int = 16) -> list[dict]:
    """Speed rows for many batches: one request with all cores, a queue of requests, batches cut over the streams."""
    arrays = random_batch(config, batch, LENGTH)
    one = ClickModel(ir, PERFORMANCE_HINT="LATENCY").compiled(LENGTH).create_infer_request()
    model = ClickModel(ir)
    queue = ov.AsyncInferQueue(model.compiled(LENGTH))

    def queued() -> None:
        for _ in range(count):
            queue.start_async(arrays, share_inputs=True)
        queue.wait_all()

    calls = {
        "latency mode": lambda: [one.infer(arrays, share_inputs=True) for _ in range(count)],
        "throughput mode, a queue of batches": queued,
        "throughput mode, batches cut": lambda: [model.infer(arrays) for _ in range(count)],
    }
    work = f"{count} batches of {batch}, history {LENGTH}"
    return [
        bench.row(f"openvino, {name}", "FP32", work, timing, amount=count * batch, unit="rows/s")
        for name, timing in bench.interleave(calls, rounds).items()
    ]


def compile_seconds(ir: Path) -> dict[str, float]:
    """Seconds to compile the graph of 100 steps, the first time and from the cache."""
    seconds = {}
    with TemporaryDirectory() as scratch:
        for name in ("compiling, first time, s", "compiling, from the cache, s"):
            begin = perf_counter()
            ClickModel(ir, cache=scratch).compiled(LENGTH)
            seconds[name] = round(perf_counter() - begin, 1)
    return seconds


def operations(length: int, config: Config) -> float:
    """Floating-point operations (multiply and add count apart) of the matrix products for one row."""
    width, query = config.item_width, config.query
    first, second = config.attention
    cells = 2 * 3 * (2 * width) * width  # two recurrent cells of three products each
    attention = 4 * width * first + first * second + second
    last = config.feature_width * config.layers[0] + config.layers[0] * config.layers[1] + config.layers[1] * 2
    return 2.0 * (length * (cells + attention) + width * query + last)


def limits(rows: list[dict], config: Config, length: int = LENGTH) -> dict[str, float]:
    """The share of the machine's peak that OpenVINO reaches at its best throughput in `rows`; peaks measured now."""
    ours = [row for row in rows if row["runtime"] == "openvino" and row["precision"] == "FP32"]
    best = max(ours, key=lambda row: row["throughput"])
    gflops = operations(length, config) * best["throughput"] / 1e9
    product, bandwidth = bench.matmul_gflops("f32"), bench.read_bandwidth_gbs()
    gathered = best["throughput"] * 4 * config.embedding * (2 * length + 3) / 1e9
    return {
        "largest f32 matrix product, GFLOP/s": round(product),
        "share of it that the products of DIEN reach": round(gflops / product, 2),
        "read bandwidth, GB/s": round(bandwidth, 1),
        "share of it that the embeddings take": round(gathered / bandwidth, 3),
    }


def main() -> None:
    """Measure everything and write the file of results."""
    with bench.exclusive() as load_at_start, TemporaryDirectory() as scratch:
        fp32 = convert.prepare("tiny", "FP32", LENGTH)
        paths = {"FP32": fp32, "INT8": convert.prepare("tiny", "INT8", LENGTH)}
        config = config_of("tiny")
        notes = compile_seconds(fp32)
        print("The tiny model at 100 steps, with torch.compile ...", flush=True)
        rows = batch_sizes("tiny", paths, LENGTH, BATCHES, rounds=9, compiling=True)
        notes |= limits(rows, config)
        print("The tiny model at 30 steps ...", flush=True)
        short = {precision: convert.prepare("tiny", precision) for precision in paths}
        rows += batch_sizes("tiny", short, convert.LENGTHS["tiny"], BATCHES, rounds=9, compiling=True)
        rows += true_lengths(fp32, rounds=3)
        rows += streams(fp32, config, rounds=3)
        print("The released size ...", flush=True)
        large = Path(scratch) / "fp32" / "dien.xml"
        paths = {"FP32": convert.convert(random_network(RELEASED), large, LENGTH)}
        samples = [random_batch(RELEASED, 32, LENGTH)]
        paths["INT8"] = convert.quantize(large, samples, Path(scratch) / "dien.xml")
        rows += batch_sizes(RELEASED, paths, LENGTH, BATCHES, 9, label="released size, random weights, speed only")
    report.save_bench("dien", rows, notes | load_at_start)


if __name__ == "__main__":
    main()
