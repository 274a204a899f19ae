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
VOCODER, DURATIONS, STEPS = "vocoder", "durations, all steps", "decoder, all steps"
SINGLE_CALL = ("encoder", "variance", "memory", "finish", "source", VOCODER)  # sub-models called once per sentence
WHOLE, FIRST = "the whole sentence", "text to first sound, with the front end"
FILES = {DURATIONS: "duration", STEPS: "decoder"}  # the models of workloads with other names
VOCODER_WORKLOADS = (VOCODER, WHOLE, FIRST)  # what BF16 and INT8 change: the acoustic model always computes in FP32
UNIT = "seconds of speech/s"  # one over this is the real-time factor
Workloads = dict[str, Callable[[], object]]


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
    """Speed rows of every runtime and sub-model, for a sentence of the first speaker, each runtime in its own process.

    voice: a checkpoint folder. folders: its IR at "FP32" and optionally "INT8". compiling: whether torch.compile is
    among the runtimes; then all are timed alternately. BF16 and INT8 apply to the vocoder only. BF16 is measured if the
    processor supports it.
    """
    both = (voice, folders["FP32"])
    settings = [
        bench.Setting(EAGER, "FP32", start_torch, (*both, "FP32")),
        bench.Setting(ONNX, "FP32", start_onnx, both),
        bench.Setting(OURS, "FP32", start_openvino, (*both, "FP32", "f32")),
        bench.Setting(STATEFUL, "FP32", start_stateful, both),
    ]
    if compiling:
        settings.append(bench.Setting(COMPILED, "FP32", start_compiled, both))
    if bench.torch_precision() == "BF16":
        settings.append(bench.Setting(EAGER, "BF16", start_torch, (*both, "BF16")))
        settings.append(bench.Setting(OURS, "BF16", start_openvino, (*both, "BF16", "bf16")))
    if "INT8" in folders:
        settings.append(bench.Setting(OURS, "INT8", start_openvino, (voice, folders["INT8"], "INT8", None)))
    sentence = Sentence(*both)
    parts = [part for part in SINGLE_CALL if part in sentence.inputs]
    works = {_timed(part, sentence.seconds): part for part in (*parts, DURATIONS, STEPS, WHOLE, FIRST)}
    timed = [bench.Workload(name, sentence.seconds, UNIT) for name in works]
    rows = bench.compare(settings, timed, rounds, label=label, memory=False, together=compiling)
    for row in rows:
        if row["runtime"] == OURS:
            folder = folders["INT8" if row["precision"] == "INT8" else "FP32"]
            row["model_mb"] = bench.size_mb(_model_of(works[row["workload"]], folder))
    return rows


class Sentence:
    """A voice, and what its sub-models get for the first sentence of TEXT. seconds: of its sound."""

    def __init__(self, voice: Path, ir: Path) -> None:
        self.acoustic, self.vocoder = load_acoustic(voice / "am"), load_vocoder(voice / "voc")
        synthesizer = Synthesizer(ir, **FP32_PROPERTIES)
        self.config = synthesizer.config
        text = next(iter(synthesizer.frontend.sentences(TEXT)))
        self.front_end = partial(read_sentence, synthesizer, synthesizer.speakers[0], text)
        self.inputs = synthesize(self.torch(), self.front_end(), self.config)
        self.seconds = self.inputs["sound"][0].size / self.config["sample_rate"]

    def modules(self) -> dict:
        return modules(self.acoustic, self.vocoder)

    def torch(self, precision: str = "FP32") -> StepwiseRuntime:
        return StepwiseRuntime(eager(self.modules(), precision), self.acoustic)

    def calls(self, runtime: Runtime, precision: str) -> Workloads:
        """The workloads of a runtime by their names in rows: all, or those that the precision changes."""
        calls = workloads(runtime, self.front_end(), self.inputs, self.config, self.front_end)
        chosen = calls if precision == "FP32" else VOCODER_WORKLOADS
        return {_timed(name, self.seconds): calls[name] for name in chosen}


def start_torch(voice: Path, ir: Path, precision: str) -> Workloads:
    """The workloads of PyTorch eager."""
    sentence = Sentence(voice, ir)
    return sentence.calls(sentence.torch(precision), precision)


def start_compiled(voice: Path, ir: Path) -> Workloads:
    """The workloads of torch.compile."""
    sentence = Sentence(voice, ir)
    return sentence.calls(StepwiseRuntime(compiled(sentence.modules()), sentence.acoustic), "FP32")


def start_onnx(voice: Path, ir: Path) -> Workloads:
    """The workloads of ONNX Runtime."""
    sentence = Sentence(voice, ir)
    examples = sentence.torch().examples(sentence.inputs)
    with TemporaryDirectory() as scratch:
        steps = onnx(sentence.modules(), examples, Path(scratch))
    return sentence.calls(StepwiseRuntime(steps, sentence.acoustic), "FP32")


def start_openvino(voice: Path, ir: Path, precision: str, hint: str | None) -> Workloads:
    """The workloads of OpenVINO. hint: the arithmetic of the vocoder, or None for what the pipeline chooses."""
    properties = {"f32": FP32_PROPERTIES, "bf16": {"INFERENCE_PRECISION_HINT": "bf16"}, None: {}}[hint]
    return Sentence(voice, ir).calls(OpenVINORuntime(ir, **properties), precision)


def start_stateful(voice: Path, ir: Path) -> Workloads:
    """The autoregressive models in OpenVINO, one call for each step."""
    sentence = Sentence(voice, ir)
    runtime, inputs = StatefulRuntime(sentence.acoustic), sentence.inputs
    calls = {
        DURATIONS: partial(runtime.durations, *inputs["durations"]),
        STEPS: partial(runtime.decode, *inputs["decoder"]),
    }
    return {_timed(name, sentence.seconds): call for name, call in calls.items()}


def _timed(workload: str, seconds: float) -> str:
    """The name of a workload in rows."""
    return f"{workload}, {seconds:.2g} s of speech"


def _model_of(workload: str, folder: Path) -> Path:
    """The model that a workload runs, or the whole folder if it runs all of them."""
    return folder if workload in (WHOLE, FIRST) else folder / f"{FILES.get(workload, workload)}.xml"


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


def stages(rows: list[dict]) -> tuple[str, dict[str, int]]:
    """The workload of the whole sentence in `rows`, and how often that of each sub-model runs in it."""
    names = [row["workload"] for row in rows]
    (whole,) = {name for name in names if name.startswith(WHOLE)}
    return whole, {name: 1 for name in names if not name.startswith((WHOLE, FIRST))}


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
        notes |= bench.stage_shares(rows, *stages(rows), "released size")
    for row in rows:
        print(f"{row['runtime']} {row['precision']}, {row['workload']}: {row['median_ms']:.1f} ms")
    report.save_bench("sambert_hifigan", rows, notes | load)
    bench.explain(rows, *stages(rows))
