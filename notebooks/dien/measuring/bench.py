"""Measures the speed of DIEN, of PyTorch and of ONNX Runtime.

The notebook runs `live`, which measures the tiny model. All other measurements take minutes, and the notebook reads
them from the file that `main` writes, results/bench/dien.json: histories of 100 items, the released size, true
lengths, throughput mode, compile times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    network: DIEN,
    paths: dict[str, Path],
    length: int,
    batches: Iterable[int],
    rounds: int,
    compiling: bool = False,
    label: str | None = None,
) -> list[dict]:
    """Speed rows: one batch of full histories at each batch size, all runtimes timed alternately.

    paths: precision -> IR. compiling: whether torch.compile is among the runtimes.
    """
    with TemporaryDirectory() as scratch:
        calls: dict[tuple[str, str], Run] = {("torch eager", "FP32"): eager(network)}
        if compiling:
            calls["torch.compile", "FP32"] = compiled(network)
        calls["torchscript", "FP32"] = scripted(network, length)
        calls["onnxruntime", "FP32"] = onnx(network, length, Path(scratch))
        for precision, path in paths.items():
            model = ClickModel(path, INFERENCE_PRECISION_HINT="f32")
            calls["openvino", precision] = model.infer
            if precision == "FP32":
                calls["openvino", "BF16"] = ClickModel(path, INFERENCE_PRECISION_HINT="bf16").infer
        rows = []
        for batch in batches:
            arrays = random_batch(network.config, batch, length)
            timings = bench.interleave({key: partial(run, arrays) for key, run in calls.items()}, rounds, warmup=2)
            for (runtime, precision), timing in timings.items():
                rows.append(
                    bench.row(
                        runtime,
                        precision,
                        f"history {length}, batch {batch}",
                        timing,
                        amount=batch,
                        unit="rows/s",
                        torch=timings["torch eager", "FP32"],
                        model_mb=bench.size_mb(paths.get(precision, paths["FP32"])),
                        label=label,
                    )
                )
    return rows


@bench.live
def live(network: DIEN, paths: dict[str, Path], length: int, rounds: int = 5) -> list[dict]:
    """Speed rows that the notebook measures: a model at its own length. paths: precision -> IR."""
    return batch_sizes(network, paths, length, (1, 128), rounds)


def true_lengths(network: DIEN, ir: Path, rounds: int, rows: int = 1024) -> list[dict]:
    """Speed rows for histories with the lengths of MovieLens: cut graphs, one graph for all lengths, and a loop."""
    rng = np.random.default_rng(0)
    whole = np.minimum([len(s) for s in data.movielens().sequences], LENGTH)
    partial_lengths = rng.integers(1, whole + 1)  # users in the middle of their sequences
    lengths = rng.permutation(np.concatenate([partial_lengths, whole]))[:rows]
    batch = random_batch(network.config, rows, LENGTH)
    ragged = [[row[:n] for row, n in zip(batch[name], lengths, strict=True)] for name in ("mid_his", "cat_his")]
    model = ClickModel(ir, INFERENCE_PRECISION_HINT="f32")
    single = [batch[name] for name in ("uid", "mid", "cat")]
    padded = batch | {"seq_len": lengths, "mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.float32)}
    loop_path = convert.convert_loop(network, ir.with_name("loop.xml"))
    loop = ov.Core().compile_model(loop_path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def in_parts(run: Run) -> None:
        """Run rows sorted by length, 128 at a time, cut to the longest of each: careful use of a loop."""
        order = np.argsort(lengths)
        for start in range(0, rows, 128):
            part = order[start : start + 128]
            run({k: x[part] if x.ndim == 1 else x[part][:, : lengths[part].max()] for k, x in padded.items()})

    calls = {
        ("openvino, cut graphs (score, with its checks)", "FP32"): partial(model.score, *single, *ragged),
        ("openvino, one graph of 100", "FP32"): partial(model.infer, padded),
        ("openvino, loop", "FP32"): partial(in_parts, loop),
        ("torch eager", "FP32"): partial(in_parts, eager(network)),
    }
    timings = bench.interleave(calls, rounds)
    peer = timings["torch eager", "FP32"]
    workload = f"{rows} rows, true lengths up to {LENGTH}"
    return [
        bench.row(runtime, precision, workload, timing, amount=rows, unit="rows/s", torch=peer)
        for (runtime, precision), timing in timings.items()
    ]


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
    with bench.exclusive() as load, TemporaryDirectory() as scratch:
        tiny = convert.load("tiny")
        fp32 = convert.prepare("tiny", "FP32", LENGTH)
        paths = {"FP32": fp32, "INT8": convert.prepare("tiny", "INT8", LENGTH)}
        notes = compile_seconds(fp32)
        print("The tiny model at 100 steps, with torch.compile ...", flush=True)
        rows = batch_sizes(tiny, paths, LENGTH, BATCHES, rounds=9, compiling=True)
        notes |= limits(rows, tiny.config)
        print("The tiny model at 30 steps ...", flush=True)
        short = {precision: convert.prepare("tiny", precision) for precision in paths}
        rows += batch_sizes(tiny, short, convert.LENGTHS["tiny"], BATCHES, rounds=9, compiling=True)
        rows += true_lengths(tiny, fp32, rounds=3)
        rows += streams(fp32, tiny.config, rounds=3)
        print("The released size ...", flush=True)
        large = random_network(RELEASED)
        paths = {"FP32": convert.convert(large, Path(scratch) / "fp32" / "dien.xml", LENGTH)}
        samples = [random_batch(RELEASED, 32, LENGTH)]
        paths["INT8"] = convert.quantize(paths["FP32"], samples, Path(scratch) / "dien.xml")
        rows += batch_sizes(large, paths, LENGTH, BATCHES, rounds=9, label="released size, random weights, speed only")
    report.save_bench("dien", rows, notes | load)


if __name__ == "__main__":
    main()
