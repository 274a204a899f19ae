"""What a new length, Snippets and buckets cost: `python -m notebooks.dynamic_shapes.measuring` measures all of it into
results/bench/dynamic_shapes.json; with the argument `submodels`, only those of other notebooks, which it adds to that
file. The notebook measures a short stream of requests."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import openvino as ov
import psutil

from notebooks.dynamic_shapes.network import SMALL, WIDTH
from notebooks.dynamic_shapes.pipeline import Bucketed, choose_buckets
from utils import bench, compare, paths, preflight, report
from utils.models import llm
from utils.models.inputs import drawn
from utils.models.llm import FP32_PROPERTIES

LONGEST = 512  # the longest request of the stream
BUCKETS = 8
SENTENCES = 20  # of the quality table
LABEL = "random weights, speed only"
FP32 = {"INFERENCE_PRECISION_HINT": "f32"}
BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}
SHAPES = {"batch 1, 32": (1, 32), "batch 1, 128": (1, 128), "batch 1, 512": (1, 512), "batch 8, 128": (8, 128)}
READER = "SmolLM2 reads"
PLAIN, CAPPED, LONG = "openvino dynamic", "openvino dynamic, 300 kernels", "openvino padded to the longest"
OURS, STATIC = "openvino buckets", "openvino static buckets"
PEERS = ("torch eager", "torch.compile dynamic", "onnxruntime")
CAPACITY = "CPU_RUNTIME_CACHE_CAPACITY"
LIVE = (OURS, PLAIN, LONG, "torch eager", "onnxruntime")


# --- Requests -----------------------------------------------------------------------------------------------------


def sentences(text: str) -> list[str]:
    """The sentences of `llm.TEXT / text`."""
    whole = " ".join((llm.TEXT / f"{text}.txt").read_text(encoding="utf-8").split())
    return [one for one in re.split(r"(?<=[.!?;])\s+", whole) if len(one) > 1]


def stream_lengths(count: int, seed: int) -> np.ndarray:
    """Lengths of requests: log-normal, with the median and the spread of the sentences of a book, in characters."""
    logs = np.log([len(sentence) for sentence in sentences("calibration")])
    drawn = np.random.default_rng(seed).lognormal(np.median(logs), logs.std(), count)
    return np.clip(drawn, 1, LONGEST).astype(int)


def history() -> np.ndarray:
    """Lengths that were seen before the stream: what buckets are chosen from."""
    return stream_lengths(2000, seed=0)


# --- Parity and quality -------------------------------------------------------------------------------------------


def text_runner(model: ov.Model, device: str = "CPU", **properties) -> Bucketed:
    """A language model without state (`convert.reader`) on buckets of tokens."""
    return Bucketed(model, [16, 32, 64, 128], mask="attention_mask", device=device, properties=properties)


def read(runner: Callable, ids: np.ndarray) -> np.ndarray:
    """The logits [1, n, vocabulary] of token ids [1, n]."""
    positions = np.arange(ids.shape[1])[None]
    return runner({"input_ids": ids, "position_ids": positions, "beam_idx": np.zeros(1)})[0]


def read_shifted(runner: Bucketed, ids: np.ndarray) -> np.ndarray:
    """A mistake: the padding stands on the left, and the mask does not hide it."""
    bucket = next(bucket for bucket in runner.buckets if bucket >= ids.shape[1])
    padded = np.concatenate([np.zeros((1, bucket - ids.shape[1]), np.int64), ids], 1)
    return read(runner, padded)[:, -ids.shape[1] :]


def parity(networks: Mapping[str, tuple], runner: Bucketed, reference, tokens: Sequence[np.ndarray]) -> list[dict]:
    """Padded, masked and cut results of `networks` (name -> IR, PyTorch) and of a language model, in FP32.

    runner, reference: of the language model. PyTorch gets each request without padding.
    """
    import torch

    rows, rng = [], np.random.default_rng(0)
    for name, (model, network) in networks.items():
        buckets = Bucketed(model, [16, 64, 128], mask="mask", properties=FP32)
        for n in (5, 64, 100):
            x = rng.standard_normal((1, n, WIDTH), np.float32)
            with torch.no_grad():
                expected = network(torch.from_numpy(x), torch.ones(1, n))
            rows.append(compare.parity(f"{name}, length {n}", buckets({"x": x})[0], expected, 1e-4))
    for ids in tokens:
        with torch.no_grad():
            expected = reference(torch.from_numpy(ids)).logits
        rows.append(compare.parity(f"language model, {ids.shape[1]} tokens", read(runner, ids), expected, 1e-2))
    return rows


def perplexity(logits_of: Callable, tokens: Sequence[np.ndarray]) -> float:
    """Of several sentences, token by token."""
    logs = [np.log(llm.perplexity(logits_of, ids)) for ids in tokens]
    return float(np.exp(np.average(logs, weights=[ids.shape[1] - 1 for ids in tokens])))


def quality(model: ov.Model, reference, tokens: Sequence[np.ndarray], device: str = "CPU") -> list[dict]:
    """Perplexity of sentences that are padded to buckets; PyTorch gets them without padding."""
    import torch

    with torch.no_grad():
        expected = perplexity(lambda ids: reference(torch.from_numpy(ids)).logits.numpy(), tokens)
    metric, limit = f"perplexity of {len(tokens)} sentences in buckets", 1.02 * expected
    rows = []
    for precision, properties in {"FP32": FP32_PROPERTIES, bench.arithmetic("FP16"): {}}.items():
        runner = text_runner(model, device, **properties)
        value = perplexity(partial(read, runner), tokens)
        rows.append(compare.quality(metric, precision, value, expected, limit, "lower"))
    runner = text_runner(model, device, **FP32_PROPERTIES)
    broken = perplexity(partial(read_shifted, runner), tokens)
    return [*rows, compare.control(metric, "padded on the left, no mask", broken, limit, "lower")]


# --- A new length -------------------------------------------------------------------------------------------------


def new_lengths(
    file: Path, properties: Mapping, lengths: Sequence[int], multiples: Mapping[str, int] | None = None
) -> tuple[list[float], list[float], float]:
    """Milliseconds of the first and the second call of each length, and the MB that each length leaves behind.

    multiples: as for `sized`. Call it in a process of its own.
    """
    compiled = ov.Core().compile_model(file, "CPU", dict(properties))
    request = compiled.create_infer_request()

    def run(n: int) -> float:
        arrays = sized(compiled, n, multiples=multiples)
        return _milliseconds(partial(request.infer, arrays, share_inputs=True))

    for n in range(max(lengths) + len(lengths), max(lengths), -1):  # until the memory of generating kernels is there
        run(n)
    before, times = psutil.Process().memory_info().rss, []
    for n in lengths:
        times.append((run(n), run(n)))
    grown = (psutil.Process().memory_info().rss - before) / 1e6 / len(lengths)
    first, second = zip(*times, strict=True)
    return list(first), list(second), grown


def sized(
    model: ov.Model | ov.CompiledModel, n: int, batch: int = 1, multiples: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Inputs of length n for a model with dynamic shapes, with values as in `drawn`.

    The first dimension is the batch if it is dynamic and another one is, too; all other dynamic dimensions are n.
    multiples: inputs whose length is a multiple of n, such as {"noise": 2}. Raises ValueError for an unknown input.
    """
    multiples, rng = dict(multiples or {}), np.random.default_rng(0)
    names = [port.any_name for port in model.inputs]
    if unknown := {*multiples} - {*names}:
        raise ValueError(f"The model has no input {sorted(unknown)[0]!r}. There are: {', '.join(names)}.")
    arrays = {}
    for port, name in zip(model.inputs, names, strict=True):
        dimensions = list(port.get_partial_shape())
        shape = [n * multiples.get(name, 1) if size.is_dynamic else size.get_length() for size in dimensions]
        if sum(size.is_dynamic for size in dimensions) > 1 and dimensions[0].is_dynamic:
            shape[0] = batch
        elif name == "beam_idx":
            shape = [batch]
        arrays[name] = drawn(port, shape, rng)
    return arrays


def _milliseconds(call: Callable, *arguments) -> float:
    begin = perf_counter()
    call(*arguments)
    return (perf_counter() - begin) * 1e3


def new_length_rows(folder: Path, lengths: Sequence[int]) -> tuple[list[dict], dict[str, float]]:
    """Speed rows of the first and the second call of many lengths, and notes with the MB that each length costs."""
    rows, notes = [], {}
    for name in ("vocoder", "encoder"):
        for capacity in ("5000", "300", "20", "0"):
            properties = FP32 | {CAPACITY: capacity}
            *times, grown = preflight.in_child(new_lengths, folder / f"{name}.xml", properties, lengths)
            for call, samples in zip(("first", "second"), times, strict=True):
                workload = f"{name}: {call} call of a length"
                timing = bench.Timing.of(samples)
                rows.append(bench.row(f"openvino, capacity {capacity}", "FP32", workload, timing, label=LABEL))
            notes[f"MB that a new length of the {name} leaves behind, capacity {capacity}"] = round(grown, 2)
    return rows, notes


# --- A stream of requests -----------------------------------------------------------------------------------------


def write_networks(folder: Path) -> None:
    """The encoder and the vocoder as IR and ONNX files. It runs in a process of its own, which loads PyTorch."""
    from notebooks.dynamic_shapes.convert import MASKED, to_ir, to_onnx

    for name in MASKED:
        ov.save_model(to_ir(name), folder / f"{name}.xml", compress_to_fp16=False)
        to_onnx(name, folder / f"{name}.onnx")


def stream(runtime: str, name: str, folder: Path, lengths: Sequence[int]) -> dict:
    """Milliseconds of each request in a fresh process, its peak memory, and what the runtime says about itself."""
    call, about = runner_of(runtime, name, folder)
    times = []
    for n in lengths:
        x = np.random.default_rng(n).standard_normal((1, n, WIDTH), np.float32)
        times.append(_milliseconds(call, x))
    return {"ms": times, "peak": bench.peak_bytes(), "about": about()}


def runner_of(runtime: str, name: str, folder: Path) -> tuple[Callable[[np.ndarray], object], Callable[[], str]]:
    """A function of x [1, n, WIDTH] that runs a network, and one that describes what the runtime has done."""
    buckets = choose_buckets(history(), BUCKETS, LONGEST)
    file = folder / f"{name}.xml"
    if runtime in (OURS, STATIC, LONG):
        lengths = [LONGEST] if runtime == LONG else buckets
        runner = Bucketed(file, lengths, mask="mask", static=runtime != OURS, properties=FP32)
        return lambda x: runner({"x": x}), lambda: str(runner.usage())
    if runtime in (PLAIN, CAPPED):
        capacity = {CAPACITY: "300"} if runtime == CAPPED else {}
        request = ov.Core().compile_model(file, "CPU", FP32 | capacity).create_infer_request()
        return lambda x: request.infer({"x": x, "mask": np.ones(x.shape[:2], np.float32)}), str
    if runtime == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(file.with_suffix(".onnx"), providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"x": x, "mask": np.ones(x.shape[:2], np.float32)}), str
    import torch
    from torch._dynamo.utils import counters

    from notebooks.dynamic_shapes.convert import network_of

    network = network_of(name)[0]
    if "compile" in runtime:
        network = torch.compile(network, dynamic=True)

    def run(x: np.ndarray) -> None:
        with torch.inference_mode():
            network(torch.from_numpy(x), torch.ones(x.shape[:2]))

    return run, lambda: f"{counters['stats']['unique_graphs']} graphs compiled"


def stream_rows(name: str, runtimes: Sequence[str], folder: Path, count: int, rounds: int = 1) -> tuple:
    """Speed rows of a stream and notes. One process after another, so that none disturbs the next."""
    lengths = stream_lengths(count, seed=1)
    taken: dict[str, list] = {runtime: [] for runtime in runtimes}
    for _ in range(rounds):
        for runtime in runtimes:
            taken[runtime].append(preflight.in_child(stream, runtime, name, folder, lengths))
    rows = []
    percentile = {runtime: [float(np.percentile(run["ms"], 99)) for run in runs] for runtime, runs in taken.items()}
    whole = {runtime: [sum(run["ms"]) for run in runs] for runtime, runs in taken.items()}
    for workload, samples in (
        (f"{name}: {count:,} requests", whole),
        (f"{name}: p99 of {count:,} requests", percentile),
    ):
        timings = {runtime: bench.Timing.of(own) for runtime, own in samples.items()}
        torch = [timing for runtime, timing in timings.items() if runtime.startswith("torch")]
        best = min(torch, key=lambda timing: timing.median_ms, default=None)
        work = {"amount": count, "unit": "requests/s"} if samples is whole else {}
        for runtime, timing in timings.items():
            peak = max(run["peak"] for run in taken[runtime]) / 1e6
            row = bench.row(runtime, "FP32", workload, timing, torch=best, peak_rss_mb=peak, label=LABEL, **work)
            rows.append(row | {"ratio_at_precision": row["ratio_to_torch"]})
    notes = {f"{name}, {runtime}": runs[-1]["about"] for runtime, runs in taken.items() if runs[-1]["about"]}
    return rows, notes


@bench.live
def short_stream(count: int = 400) -> list[dict]:
    """The notebook's stream: the vocoder with LIVE, one round."""
    with tempfile.TemporaryDirectory() as folder:
        preflight.in_child(write_networks, Path(folder))
        return stream_rows("vocoder", LIVE, Path(folder), count)[0]


# --- Snippets -----------------------------------------------------------------------------------------------------


def start(name: str, kind: str, mode: str, precision: str, folder: Path) -> dict[str, Callable]:
    """The workloads of one network; kind: "static" or "dynamic"; mode: of Snippets. A `start` of bench.Setting."""
    properties = (FP32 if precision == "FP32" else BF16) | {"SNIPPETS_MODE": mode}
    core, calls = ov.Core(), {}
    model = core.read_model(folder / f"{name}.xml")
    dynamic = core.compile_model(model, "CPU", properties)
    for label, (batch, n) in SHAPES.items():
        inputs = sized(model, n, batch)
        compiled = dynamic
        if kind == "static":
            fixed = model.clone()
            fixed.reshape({own: list(array.shape) for own, array in inputs.items()})
            compiled = core.compile_model(fixed, "CPU", properties)
        request = compiled.create_infer_request()
        calls[f"{name}, {label}"] = partial(request.infer, inputs, share_inputs=True)
    return calls


def write_small(folder: Path) -> None:
    """The small networks, and SmolLM2 without state, as IR files."""
    from notebooks.dynamic_shapes import convert

    for name in SMALL:
        ov.save_model(convert.to_ir(name), folder / f"{name}.xml", compress_to_fp16=False)
    ov.save_model(convert.reader(convert.prepare()), folder / f"{READER}.xml")


def snippets_rows(folder: Path, names: Sequence[str], rounds: int = 5) -> list[dict]:
    """Speed rows of networks, static and dynamic, with Snippets on and off."""
    rows = []
    precisions = dict.fromkeys(("FP32", bench.torch_precision()))
    for name in names:
        settings = [
            bench.Setting(f"openvino {kind}, Snippets {state}", precision, start, (name, kind, mode, precision, folder))
            for kind in ("static", "dynamic")
            for precision in precisions
            for state, mode in (("on", "ENABLE"), ("off", "DISABLE"))
        ]
        workloads = [bench.Workload(f"{name}, {label}") for label in SHAPES]
        rows += bench.compare(settings, workloads, rounds, label=LABEL, memory=False)
    return rows


# --- Sub-models of other notebooks --------------------------------------------------------------------------------


class Submodel(NamedTuple):
    """A part of another notebook's model. pattern: its IR below models/ir; multiples: as for `sized`."""

    pattern: str
    lengths: range
    multiples: dict[str, int] = {}


SUBMODELS = {
    "SAMBERT, encoder": Submodel("sambert_hifigan-tiny-fp16-*/encoder.xml", range(20, 60)),
    "SAMBERT, vocoder": Submodel("sambert_hifigan-tiny-fp16-*/vocoder.xml", range(200, 240), {"source": 200}),
    "GPT-SoVITS, synthesizer": Submodel(
        "gpt-sovits-tiny-fp16-*/openvino_synthesizer_model.xml", range(60, 100), {"noise": 2}
    ),
    "MiniCPM-V, vision tower": Submodel(
        "minicpm-v-tiny-fp16-*/openvino_vision_embeddings_model.xml", range(60, 100), {"pixel_values": 14}
    ),
    "Wav2Lip, generator (the length is the batch)": Submodel("wav2lip-tiny-fp32-*/wav2lip.xml", range(8, 32)),
}


def submodel_notes() -> dict[str, str]:
    """What a new length costs each of SUBMODELS, and what Snippets brings it; by note.

    Raises ValueError where a notebook has not converted its model yet.
    """
    notes = {}
    for name, (pattern, lengths, multiples) in SUBMODELS.items():
        file = max((paths.models_dir() / "ir").glob(pattern), key=lambda path: path.stat().st_mtime, default=None)
        if file is None:
            raise ValueError(f"There is no {pattern} in {paths.models_dir() / 'ir'}. Run that notebook first.")
        for capacity in ("5000", "300"):
            first, second, mb = preflight.in_child(new_lengths, file, FP32 | {CAPACITY: capacity}, lengths, multiples)
            notes[f"{name}, capacity {capacity}"] = (
                f"first call {np.median(first):.1f} ms, second call {np.median(second):.1f} ms, "
                f"{mb:.2f} MB for each length"
            )
        on, off = (
            np.median(preflight.in_child(new_lengths, file, FP32 | {"SNIPPETS_MODE": mode}, lengths, multiples)[1])
            for mode in ("ENABLE", "DISABLE")
        )
        notes[f"{name}, dynamic"] = f"{on:.1f} ms with Snippets, {off:.1f} ms without"
    return notes


def main(part: str = "") -> None:
    """Measure everything, or with part "submodels" those; see the module."""
    with bench.exclusive() as load:
        if part == "submodels":
            report.amend(report.BENCH / "dynamic_shapes.json", "sub-models: ", {
                f"sub-models: {name}": note for name, note in submodel_notes().items()
            })  # fmt: skip
            return
        preflight.check(ram_gb=8, disk_gb=2, what="The measurement of all networks")
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            preflight.in_child(write_networks, folder)
            preflight.in_child(write_small, folder)
            rows, notes = new_length_rows(folder, range(40, 140))
            for name in ("vocoder", "encoder"):
                runtimes = (OURS, STATIC, PLAIN, CAPPED, LONG, *PEERS)
                more, about = stream_rows(name, runtimes, folder, 2000, rounds=2)
                rows, notes = rows + more, notes | about
            rows += snippets_rows(folder, (*SMALL, "encoder", "vocoder", READER))
    report.save_bench("dynamic_shapes", rows, notes | load)


if __name__ == "__main__":
    main(*sys.argv[1:])
