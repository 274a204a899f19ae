"""What DIEN and its peers take: `python -m notebooks.dien.measuring`.

The notebook measures `live`, the tiny model. The rest takes minutes and comes from the file that this module
writes, results/bench/dien.json: sequence 100, the released size, true lengths, throughput mode, compile times.
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
from notebooks.dien.network.dien import DIEN, INPUTS, Config
from notebooks.dien.pipeline import ClickModel
from utils import bench, report

RELEASED = Config(543_060, 367_983, 1601)  # Amazon Books: 16.4 million embedding values
LENGTH = 100
BATCHES = (1, 128, 1024)
Run = Callable[[dict[str, np.ndarray]], object]


def inputs(config: Config, rows: int, length: int) -> dict[str, np.ndarray]:
    """A random batch by input name; histories as long as they can be."""
    rng = np.random.default_rng(rows)
    single = [rng.integers(1, size, rows) for size in (config.n_uid, config.n_mid, config.n_cat)]
    histories = [rng.integers(1, size, (rows, length)) for size in (config.n_mid, config.n_cat)]
    arrays = (*single, *histories, np.ones((rows, length), np.float32), np.full(rows, length))
    return dict(zip(INPUTS, arrays, strict=True))


def seeded(config: Config) -> DIEN:
    """A network of random weights: good for speed, and for nothing else."""
    torch.manual_seed(0)
    network = DIEN(config).eval()
    for parameter in network.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))  # no bias of 0, which would be folded away
    return network


def eager(network: DIEN) -> Run:
    """PyTorch as it is."""

    def run(batch: dict[str, np.ndarray]) -> None:
        with torch.inference_mode():
            network(*(torch.from_numpy(batch[name]) for name in INPUTS))

    return run


def scripted(network: DIEN, length: int) -> Run:
    """TorchScript, traced for one length and frozen."""
    example = inputs(network.config, 2, length)
    with torch.no_grad():
        traced = torch.jit.trace(network, tuple(torch.from_numpy(example[name]) for name in INPUTS), check_trace=False)
        frozen = torch.jit.freeze(traced)

    def run(batch: dict[str, np.ndarray]) -> None:
        with torch.inference_mode():
            frozen(*(torch.from_numpy(batch[name]) for name in INPUTS))

    return run


def compiled(network: DIEN) -> Run:
    """torch.compile, for any batch; compiling takes minutes, so that only `main` does it."""
    graph = torch.compile(network, dynamic=True)

    def run(batch: dict[str, np.ndarray]) -> None:
        with torch.inference_mode():
            graph(*(torch.from_numpy(batch[name]) for name in INPUTS))

    return run


def onnx(network: DIEN, length: int, folder: Path) -> Run:
    """ONNX Runtime on the network exported for one length; all cores, all its optimizations (the default)."""
    import onnxruntime

    path = folder / f"dien-{length}.onnx"
    example = inputs(network.config, 2, length)
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


def sizes(
    network: DIEN,
    paths: dict[str, Path],
    length: int,
    batches: Iterable[int],
    rounds: int,
    compiling: bool = False,
    label: str | None = None,
) -> list[dict]:
    """Speed rows: one batch of full histories at each size, every runtime in turns. paths: precision -> IR.

    compiling: whether torch.compile is among them.
    """
    what = f"history {length}"
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
            given = inputs(network.config, batch, length)
            timings = bench.interleave({key: partial(run, given) for key, run in calls.items()}, rounds, warmup=2)
            for (runtime, precision), timing in timings.items():
                rows.append(
                    bench.row(
                        runtime,
                        precision,
                        f"{what}, batch {batch}",
                        timing,
                        amount=batch,
                        unit="rows/s",
                        torch=timings["torch eager", "FP32"],
                        model_mb=bench.size_mb(paths.get(precision, paths["FP32"])),
                        label=label,
                    )
                )
                print(f"{runtime} {precision}, {rows[-1]['workload']}: {timing.median_ms:.1f} ms", flush=True)
    return rows


def live(model: str = "tiny", rounds: int = 5) -> list[dict]:
    """What the notebook measures: a model at its own length."""
    paths = {precision: convert.prepare(model, precision) for precision in convert.PRECISIONS[model]}
    return sizes(convert.load(model), paths, convert.LENGTHS[model], (1, 128), rounds)


def true_lengths(network: DIEN, ir: Path, rounds: int, rows: int = 1024) -> list[dict]:
    """Speed rows: histories of the lengths that MovieLens has: cut graphs, one graph for all, and a loop."""
    rng = np.random.default_rng(0)
    lengths = np.minimum([len(s) for s in data.movielens().sequences], LENGTH)
    lengths = rng.permutation(np.concatenate([rng.integers(1, lengths + 1), lengths]))[:rows]  # anywhere in a sequence
    batch = inputs(network.config, rows, LENGTH)
    ragged = [[row[:n] for row, n in zip(batch[name], lengths, strict=True)] for name in ("mid_his", "cat_his")]
    model = ClickModel(ir, INFERENCE_PRECISION_HINT="f32")
    single = [batch[name] for name in ("uid", "mid", "cat")]
    padded = batch | {"seq_len": lengths, "mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.float32)}
    loop_path = convert.convert_loop(network, ir.with_name("loop.xml"))
    loop = ov.Core().compile_model(loop_path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def in_parts(run: Run) -> None:
        """Rows sorted by length and cut to the longest of each 128: what a careful user of a loop would do."""
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
    """Speed rows: many batches, by one request that has all cores, through a queue, and each cut over the streams."""
    given = inputs(config, batch, LENGTH)
    one = ClickModel(ir, PERFORMANCE_HINT="LATENCY").compiled(LENGTH).create_infer_request()
    model = ClickModel(ir)
    queue = ov.AsyncInferQueue(model.compiled(LENGTH))

    def queued() -> None:
        for _ in range(count):
            queue.start_async(given, share_inputs=True)
        queue.wait_all()

    calls = {
        "latency mode": lambda: [one.infer(given, share_inputs=True) for _ in range(count)],
        "throughput mode, a queue of batches": queued,
        "throughput mode, batches cut": lambda: [model.infer(given) for _ in range(count)],
    }
    work = f"{count} batches of {batch}, history {LENGTH}"
    return [
        bench.row(f"openvino, {name}", "FP32", work, timing, amount=count * batch, unit="rows/s")
        for name, timing in bench.interleave(calls, rounds).items()
    ]


def compile_seconds(ir: Path) -> dict[str, float]:
    """Seconds to compile the graph of 100 steps, the first time and from the cache."""
    found = {}
    with TemporaryDirectory() as scratch:
        for name in ("compiling, first time, s", "compiling, from the cache, s"):
            begin = perf_counter()
            ClickModel(ir, cache=scratch).compiled(LENGTH)
            found[name] = round(perf_counter() - begin, 1)
    return found


def operations(length: int, config: Config) -> float:
    """Floating-point operations (multiply and add count apart) of the matrix products for one row."""
    w, query = config.item, config.query
    first, second = config.attention
    step = 2 * 3 * (2 * w) * w + 4 * w * first + first * second + second  # two cells, attention
    last = config.features * config.layers[0] + config.layers[0] * config.layers[1] + config.layers[1] * 2
    return 2.0 * (length * step + w * query + last)


def limits(rows: list[dict], config: Config, length: int = LENGTH) -> dict[str, float]:
    """How far OpenVINO is from what the machine can do, measured now, at the largest batch of `rows`."""
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
    with bench.exclusive() as load, TemporaryDirectory() as scratch:
        tiny = convert.load("tiny")
        fp32 = convert.prepare("tiny", "FP32", LENGTH)
        paths = {"FP32": fp32, "INT8": convert.prepare("tiny", "INT8", LENGTH)}
        notes = compile_seconds(fp32)
        rows = sizes(tiny, paths, LENGTH, BATCHES, rounds=9, compiling=True)
        notes |= limits(rows, tiny.config)
        short = {precision: convert.prepare("tiny", precision) for precision in paths}
        rows += sizes(tiny, short, convert.LENGTHS["tiny"], BATCHES, rounds=9, compiling=True)
        rows += true_lengths(tiny, fp32, rounds=3)
        rows += streams(fp32, tiny.config, rounds=3)
        large = seeded(RELEASED)
        paths = {"FP32": convert.convert(large, Path(scratch) / "fp32" / "dien.xml", LENGTH)}
        samples = [inputs(RELEASED, 32, LENGTH)]
        paths["INT8"] = convert.quantize(paths["FP32"], samples, Path(scratch) / "dien.xml")
        rows += sizes(large, paths, LENGTH, BATCHES, rounds=9, label="released size, random weights, speed only")
    report.save_bench("dien", rows, notes | load)


if __name__ == "__main__":
    main()
