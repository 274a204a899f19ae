"""Measures the speed of SAMBERT-HiFiGAN in all runtimes: `python -m notebooks.sambert_hifigan.measuring`.

The notebook measures its own voice with `live`. `main` measures a voice of the released size with random weights,
converted as a released one would be, and writes results/bench/sambert_hifigan.json; that takes minutes. Every sub-model
is measured. The autoregressive ones are measured twice in OpenVINO: with the loop inside the graph, and as models of a
step with the state inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils.flop_counter import FlopCounterMode

from notebooks.sambert_hifigan import convert
from notebooks.sambert_hifigan.measuring.random_checkpoint import SAMPLE_RATE_HZ, SPEAKER, random_voice
from notebooks.sambert_hifigan.measuring.runtimes import (
    Arrays,
    OpenVINORuntime,
    Runtime,
    SentenceInputs,
    StatefulRuntime,
    StepwiseRuntime,
    compiled,
    eager,
    modules,
    onnx,
    read_sentence,
    synthesize,
)
from notebooks.sambert_hifigan.network.acoustic import load_acoustic
from notebooks.sambert_hifigan.network.decoder import MelDecoder
from notebooks.sambert_hifigan.network.vocoder import Generator, load_vocoder
from notebooks.sambert_hifigan.pipeline import FP32_PROPERTIES, Synthesizer
from utils import bench, report

# the first sentence is measured
TEXT = "今天天气很好，我们一起去公园散步吧。请问火车站怎么走？孩子们在草地上跑来跑去，非常高兴。"
SPEED_ONLY = "released size, random weights, speed only"
EAGER, COMPILED, ONNX, OURS = "torch eager", "torch.compile", "onnxruntime", "openvino"
STATEFUL = "openvino, a call a step"
PYTORCH = (EAGER, COMPILED)
VOCODER, DURATIONS, STEPS = "vocoder", "durations, all steps", "decoder, all steps"
SINGLE_CALL = ("encoder", "variance", "memory", "finish", "source", VOCODER)  # sub-models called once per sentence
WHOLE, FIRST = "the whole sentence", "text to first sound, with the front end"
FILES = {DURATIONS: "duration", STEPS: "decoder"}  # the models of workloads with other names
VOCODER_WORKLOADS = (VOCODER, WHOLE, FIRST)  # what BF16 and INT8 change: the acoustic model always computes in FP32
UNIT = "seconds of speech/s"  # one over this is the real-time factor
Key = tuple[str, str]  # runtime, precision


def workloads(
    runtime: Runtime,
    sentence: SentenceInputs,
    inputs: Mapping[str, Arrays],
    config: Mapping,
    front_end: Callable[[], SentenceInputs],
) -> dict[str, Callable]:
    """The calls to measure, by name. inputs: of `synthesize`; front_end: reads the sentence again."""
    calls: dict[str, Callable] = {
        part: partial(runtime.run, part, *inputs[part]) for part in SINGLE_CALL if part in inputs
    }
    calls[DURATIONS] = partial(runtime.durations, *inputs["durations"])
    calls[STEPS] = partial(runtime.decode, *inputs["decoder"])
    calls[WHOLE] = partial(synthesize, runtime, sentence, config)
    calls[FIRST] = lambda: synthesize(runtime, front_end(), config)
    return calls


def measured(
    voice: Path,
    folders: Mapping[str, Path],
    rounds: int,
    compiling: bool = False,
    label: str | None = None,
) -> list[dict]:
    """Speed rows of every runtime and sub-model, for a sentence of the first speaker.

    All calls are timed alternately. voice: a checkpoint folder. folders: its IR at "FP32" and optionally "INT8".
    compiling: whether torch.compile is among the runtimes. The ratio of a row is to the fastest setting of PyTorch in
    its workload. BF16 and INT8 apply to the vocoder only. BF16 is measured if the processor supports it.
    """
    acoustic, vocoder = load_acoustic(voice / "am"), load_vocoder(voice / "voc")
    ours = OpenVINORuntime(folders["FP32"], **FP32_PROPERTIES)
    config, synthesizer = ours.synthesizer.config, ours.synthesizer
    text = next(iter(synthesizer.frontend.sentences(TEXT)))
    front_end = partial(read_sentence, synthesizer, synthesizer.speakers[0], text)
    sentence = front_end()
    torch_runtime = StepwiseRuntime(eager(modules(acoustic, vocoder)), acoustic)
    inputs = synthesize(torch_runtime, sentence, config)
    seconds = inputs["sound"][0].size / config["sample_rate"]
    with TemporaryDirectory() as scratch:
        # the runtimes
        runtimes: dict[Key, Runtime] = {(EAGER, "FP32"): torch_runtime}
        if compiling:
            runtimes[COMPILED, "FP32"] = StepwiseRuntime(compiled(modules(acoustic, vocoder)), acoustic)
        exported = onnx(modules(acoustic, vocoder), torch_runtime.examples(inputs), Path(scratch))
        runtimes[ONNX, "FP32"] = StepwiseRuntime(exported, acoustic)
        runtimes[OURS, "FP32"] = ours
        if bench.torch_precision() == "BF16":
            parts = modules(acoustic, load_vocoder(voice / "voc"))
            runtimes[EAGER, "BF16"] = StepwiseRuntime(eager(parts, "BF16"), acoustic)
            runtimes[OURS, "BF16"] = OpenVINORuntime(folders["FP32"], INFERENCE_PRECISION_HINT="bf16")
        if "INT8" in folders:
            runtimes[OURS, "INT8"] = OpenVINORuntime(folders["INT8"])

        # their workloads
        calls = {}
        for (name, precision), runtime in runtimes.items():
            all_calls = workloads(runtime, sentence, inputs, config, front_end)
            chosen = all_calls if precision == "FP32" else VOCODER_WORKLOADS
            calls |= {(name, precision, workload): all_calls[workload] for workload in chosen}
        stateful_runtime = StatefulRuntime(acoustic)
        calls[STATEFUL, "FP32", DURATIONS] = partial(stateful_runtime.durations, *inputs["durations"])
        calls[STATEFUL, "FP32", STEPS] = partial(stateful_runtime.decode, *inputs["decoder"])
        timings = bench.interleave(calls, rounds)
    rows = []
    for (runtime, precision, workload), timing in timings.items():
        torch_timings = [x for (name, _, work), x in timings.items() if name in PYTORCH and work == workload]
        folder = folders["INT8" if precision == "INT8" else "FP32"]
        row = bench.row(
            runtime,
            precision,
            f"{workload}, {seconds:.2g} s of speech",
            timing,
            amount=seconds,
            unit=UNIT,
            torch=min(torch_timings, key=lambda timing: timing.median_ms),
            model_mb=bench.size_mb(_model_of(workload, folder)) if runtime == OURS else None,
            label=label,
        )
        rows.append(row)
    return rows


def _model_of(workload: str, folder: Path) -> Path:
    """The model that a workload runs, or the whole folder if it runs all of them."""
    return folder if workload in (WHOLE, FIRST) else folder / f"{FILES.get(workload, workload)}.xml"


def to_fastest_torch(rows: list[dict]) -> list[dict]:
    """The rows with ratios to the fastest setting of PyTorch in their workload, as `measured` writes them now.

    Earlier results have ratios to PyTorch eager at the same precision.
    """
    fastest: dict[str, float] = {}
    for row in rows:
        if row["runtime"] in PYTORCH:
            fastest[row["workload"]] = min(row["median_ms"], fastest.get(row["workload"], float("inf")))
    return [row | {"ratio_to_torch": fastest[row["workload"]] / row["median_ms"]} for row in rows]


@bench.live
def live(model: str = "tiny", rounds: int = 3) -> list[dict]:
    """What the notebook measures."""
    folders = {precision: convert.prepare(model, precision) for precision in ("FP32", "INT8")}
    return measured(convert.source(model), folders, rounds)


def limits(rows: list[dict], decoder: MelDecoder, vocoder: Generator, sample_rate: int) -> dict[str, float]:
    """The shares of the machine's limits that OpenVINO reaches in `rows`. The limits are measured in this call.

    The vocoder is compared with a large matrix product, since it is bound by arithmetic. A step of the decoder is
    compared with the bandwidth of memory, since it reads every weight once; the share may exceed 1 if weights stay in a
    cache of the processor. sample_rate: of the sound, Hz.
    """
    ours = {(row["precision"], row["workload"].rpartition(", ")[0]): row for row in rows if row["runtime"] == OURS}
    seconds = ours["FP32", VOCODER]["throughput"] * ours["FP32", VOCODER]["median_ms"] / 1e3
    frames = round(seconds * sample_rate / vocoder.hop)
    inputs = [torch.zeros(1, vocoder.mels, frames)]
    if vocoder.nsf:
        inputs.append(torch.zeros(1, 1, frames * vocoder.hop))
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        vocoder.filter(*inputs)
    work, bandwidth = counter.get_total_flops() / 1e9, bench.read_bandwidth_gbs()
    notes = {"operations of the vocoder for the sentence, GFLOP": round(work, 1)}
    notes["read bandwidth, GB/s"] = round(bandwidth, 1)
    for precision, dtype in (("FP32", "f32"), ("BF16", "bf16")):
        if (precision, VOCODER) in ours:
            product = bench.matmul_gflops(dtype)
            notes[f"large {dtype} matrix product, GFLOP/s"] = round(product)
            reached = work * 1e3 / ours[precision, VOCODER]["median_ms"] / product
            notes[f"share of it that the vocoder reaches at {precision}"] = round(reached, 2)
    read_by_a_step = [
        p for name, p in decoder.named_parameters() if "w_h_kv" not in name
    ]  # those are applied once per sentence
    steps = -(-frames // decoder.r)
    size = sum(p.numel() for p in read_by_a_step) * 4 / 1e9 * steps
    share = size * 1e3 / ours["FP32", STEPS]["median_ms"] / bandwidth
    return notes | {"share of the bandwidth that a step of the decoder reaches": round(share, 2)}


def main() -> None:
    """Measure a voice of the released size and write the results."""
    with bench.exclusive() as load, TemporaryDirectory() as scratch:
        voice = random_voice(Path(scratch) / "voice")
        folders = {"FP32": convert.to_ir(voice, Path(scratch) / "fp32", half=False)}
        half = convert.to_ir(voice, Path(scratch) / "fp16")
        mels = [spoken.mel for spoken in Synthesizer(half).stream(TEXT, SPEAKER)]
        folders["INT8"] = convert.quantize(half, mels, Path(scratch) / "int8")
        rows = measured(voice, folders, rounds=7, compiling=True, label=SPEED_ONLY)
        notes = limits(rows, load_acoustic(voice / "am").decoder, load_vocoder(voice / "voc"), SAMPLE_RATE_HZ)
    for row in rows:
        print(f"{row['runtime']} {row['precision']}, {row['workload']}: {row['median_ms']:.1f} ms")
    report.save_bench("sambert_hifigan", rows, notes | load)
