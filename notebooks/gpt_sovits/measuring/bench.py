"""The speed of GPT-SoVITS in all runtimes: `python -m notebooks.gpt_sovits.measuring.bench`.

The notebook measures `live`, the tiny model. The rest takes minutes and comes from the file that this module writes,
results/bench/gpt_sovits.json: the same at the size of the released v2, with random weights, which are converted as the
released ones would be. The token decoder, whose KV cache is inside OpenVINO, is compared with itself: with the cache
going through Python after every token, and without a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from notebooks.gpt_sovits import convert
from notebooks.gpt_sovits.measuring import runtimes
from notebooks.gpt_sovits.measuring.random_checkpoint import random_checkpoint
from notebooks.gpt_sovits.measuring.runtimes import (
    Arrays,
    Converted,
    Eager,
    Exported,
    Runtime,
    Sentence,
    greedy,
    synthesize,
)
from notebooks.gpt_sovits.pipeline import BERT
from notebooks.gpt_sovits.pipeline.token_decoder import TOKENS_PER_S, SemanticDecoder
from utils import bench, paths, preflight, report, weights
from utils.models import parts
from utils.models.llm import FP32_PROPERTIES
from utils.models.parts import xml
from utils.models.random_checkpoint import conversion_steps

SPEED_ONLY = "released size of v2, random weights, speed only"
EAGER, COMPILED, ONNX, OURS = "torch eager", "torch.compile", "onnxruntime", "openvino"
EXTERNAL_CACHE, NO_CACHE = "openvino, cache through Python", "openvino, no cache"
PYTORCH = (EAGER, COMPILED)
ONNX_NOTE = "no style, which cannot be exported; a synthesizer for one length of sentence"
FIRST, TOKENS, WHOLE = "first token", "tokens", "whole"
SYNTHESIZER = "synthesizer"
RECORDING_PARTS = ("hubert", "semantic", "style")  # parts that read the recording
AFFECTED = {  # by a precision other than FP32
    "BF16": ("hubert", BERT, SYNTHESIZER, runtimes.VOCODER, FIRST, TOKENS, WHOLE),
    "INT8": ("hubert", BERT, FIRST, TOKENS, WHOLE),
    "INT4": (FIRST, TOKENS, WHOLE),
}
Key = tuple[str, str]  # runtime, precision


def names() -> dict[str, str]:
    """The workload of a row by what is timed."""
    speech = f"{runtimes.TOKENS / TOKENS_PER_S:.2g} s of speech"
    recording = {part: f"{part}, {runtimes.RECORDING_S:.2g} s of a recording" for part in RECORDING_PARTS}
    return recording | {
        BERT: f"{BERT}, {runtimes.CHARACTERS} characters",
        SYNTHESIZER: f"{SYNTHESIZER}, {speech}",
        runtimes.VOCODER: f"{runtimes.VOCODER}, {speech}",
        FIRST: f"first token, after {2 * runtimes.CHARACTERS} phonemes and a recording",
        TOKENS: f"{runtimes.TOKENS} tokens, after {2 * runtimes.CHARACTERS} phonemes and a recording",
        WHOLE: f"the whole sentence, {speech}, and its recording",
    }


def stages() -> tuple[str, dict[str, int]]:
    """The workload of the whole, and how often each of its stages runs in it; the others are parts of stages."""
    named = names()
    return named[WHOLE], {named[stage]: 1 for stage in (*RECORDING_PARTS, BERT, TOKENS, SYNTHESIZER)}


def rate(work: str) -> tuple[float, str]:
    """The amount of work in one call, and its unit. The real-time factor is 1 / (seconds of speech per second)."""
    if work in (SYNTHESIZER, runtimes.VOCODER):
        return 2 * runtimes.TOKENS, "frames/s"
    if work in (FIRST, TOKENS):
        return (1, "prompts/s") if work == FIRST else (runtimes.TOKENS, "tokens/s")
    return runtimes.TOKENS / TOKENS_PER_S, "seconds of speech/s"


def decoding_calls(decoder: runtimes.Decoder, inputs: Mapping[str, Arrays]) -> dict[str, Callable[[], object]]:
    """The calls to time of a token decoder."""
    tokens = inputs["tokens"]
    return {FIRST: partial(decoder.prefill, *tokens), TOKENS: partial(greedy, decoder, *tokens)}


def calls_of(runtime: Runtime, sentence: Sentence, inputs: Mapping[str, Arrays]) -> dict[str, Callable[[], object]]:
    """The calls to time of a runtime, by name. inputs: of `synthesize`."""
    calls = {part: partial(runtime.run, part, *inputs[part]) for part in runtime.parts}
    if "hubert" in runtime.parts:  # not the synthesizer alone
        calls |= decoding_calls(runtime.decoder, inputs)
    if "style" in runtime.parts:
        calls[WHOLE] = partial(synthesize, runtime, sentence)
    return calls


def eager(checkpoint: Path, precision: str) -> Eager:
    """PyTorch at "FP32" or "BF16"."""
    return Eager(checkpoint, precision)


def openvino(folder: Path, precision: str, vocoder: Path | None = None) -> Converted:
    """The models of an IR folder. For INT8 and INT4 the device chooses the precision of the arithmetic."""
    properties = {"FP32": FP32_PROPERTIES, "BF16": {"INFERENCE_PRECISION_HINT": "bf16"}}
    return Converted(folder, vocoder, **properties.get(precision, {}))


def weight_folders(checkpoint: Path, folders: Mapping[str, Path]) -> dict[Key, Path]:
    """The folders of weights of the runtimes that need nothing else.

    folders: the IR at "FP16" and, optionally, "INT8" and "INT4". BF16 is included where the processor has it.
    """
    floats = bench.torch_precisions()
    paths = {(EAGER, precision): checkpoint for precision in floats}
    paths |= {(OURS, precision): folders["FP16"] for precision in floats}
    return paths | {(OURS, precision): folder for precision, folder in folders.items() if precision != "FP16"}


def time_all(
    checkpoint: Path,
    folders: Mapping[str, Path],
    rounds: int,
    compiling: bool = False,
    label: str | None = None,
    together: bool = True,
) -> list[dict]:
    """Speed rows of every runtime and part, each runtime in a process of its own; folders: see `weight_folders`.

    compiling: whether torch.compile is among the runtimes. together: see `bench.compare`. Then OpenVINO and its other
    peers are two groups, each with all of PyTorch, so that seven processes live at once and not ten.
    """
    fp16 = folders["FP16"]
    with TemporaryDirectory() as scratch:
        vocoder = runtimes.convert_vocoder(checkpoint, Path(scratch) / "vocoder.xml")
        given = synthesize(eager(checkpoint, "FP32"), runtimes.sentence(fp16))
        inputs = runtimes.save_inputs(given, Path(scratch) / "inputs.npz")
        others = [(COMPILED, "FP32")] if compiling else []
        others += [(ONNX, "FP32"), (EXTERNAL_CACHE, "FP32"), (NO_CACHE, "FP32")]
        paths = weight_folders(checkpoint, folders) | dict.fromkeys(others)
        settings = [
            bench.Setting(
                *key, start, (*key, path or fp16, checkpoint, fp16, vocoder, inputs), path and bench.size_mb(path)
            )
            for key, path in paths.items()
        ]
        timed = [bench.Workload(name, *rate(work)) for work, name in names().items()]
        compare = partial(bench.compare, rounds=rounds, label=label, memory=False, together=together)
        if not together:
            return compare(settings, timed)
        ours = compare([setting for setting in settings if setting.runtime in (*PYTORCH, OURS)], timed)
        others = compare([setting for setting in settings if setting.runtime != OURS], timed)
        return ours + [row for row in others if row["runtime"] not in PYTORCH]


def start(
    runtime: str, precision: str, path: Path, checkpoint: Path, fp16: Path, vocoder: Path, inputs: Path
) -> dict[str, Callable]:
    """The workloads of a runtime, by their names in rows. It loads nothing else, for many processes live at once.

    path: the checkpoint or the IR folder. fp16: the IR folder at FP16. vocoder: of `runtimes.convert_vocoder`. inputs:
    the file of what PyTorch computed, which every runtime gets.
    """
    given = runtimes.load_inputs(inputs)
    if runtime in (EXTERNAL_CACHE, NO_CACHE):
        if runtime == EXTERNAL_CACHE:
            decoder = runtimes.openvino_external_cache(checkpoint, fp16, **FP32_PROPERTIES)
        else:
            decoder = runtimes.NoCacheDecoder(SemanticDecoder(fp16, **FP32_PROPERTIES))
        return {names()[TOKENS]: decoding_calls(decoder, given)[TOKENS]}
    loaded = _loaded(runtime, precision, path, checkpoint, given, vocoder)
    calls = calls_of(loaded, runtimes.sentence(fp16), given)
    chosen = calls if precision == "FP32" else AFFECTED[precision]
    return {names()[work]: calls[work] for work in chosen if work in calls}


def _loaded(
    runtime: str,
    precision: str,
    path: Path,
    checkpoint: Path,
    inputs: Mapping[str, Arrays],
    vocoder: Path,
) -> Runtime:
    if runtime == EAGER:
        return eager(path, precision)
    if runtime == COMPILED:
        return Eager(checkpoint, compiling=True)
    if runtime == OURS:
        return openvino(path, precision, vocoder)
    with TemporaryDirectory() as scratch:
        runtimes.export(checkpoint, inputs, Path(scratch))
        return Exported(Path(scratch))


def once(runtime: str, path: Path, precision: str, sentence: Sentence) -> None:
    """Synthesize the sentence once, in a process of its own whose memory is measured."""
    synthesize((eager if runtime == EAGER else openvino)(path, precision), sentence)


def measured(
    checkpoint: Path, folders: Mapping[str, Path], rounds: int, compiling: bool = False, label: str | None = None
) -> list[dict]:
    """The rows of `time_all`, those of `weight_folders` with the peak memory of a process that does nothing else."""
    sentence, peaks_mb = runtimes.sentence(folders["FP16"]), {}
    for (runtime, precision), path in weight_folders(checkpoint, folders).items():
        peaks_mb[runtime, precision] = bench.peak_rss_mb(once, runtime, path, precision, sentence)
        print(f"{runtime} {precision}: up to {peaks_mb[runtime, precision]:.0f} MB", flush=True)
    rows = time_all(checkpoint, folders, rounds, compiling, label)
    return [row | {"peak_rss_mb": peaks_mb.get((row["runtime"], row["precision"]))} for row in rows]


def limits(rows: list[dict], folders: Mapping[str, Path], synthesizer: nn.Module) -> dict[str, float]:
    """How far OpenVINO is from the limits of the machine, which are measured now; rows: of `time_all`.

    A token after the first reads every weight of the language model once, so its limit is the bandwidth of memory. The
    synthesizer and its vocoder multiply, so their limit is the speed of a large matrix product.
    """
    known = {(row["runtime"], row["precision"], row["workload"]): row for row in rows}
    named, work = names(), gflop(synthesizer, runtimes.sentence(folders["FP16"]))
    bandwidth = bench.read_bandwidth_gbs()
    notes = {"read bandwidth, GB/s": round(bandwidth, 1)}
    notes |= {f"operations of the {part} for the sentence, GFLOP": round(count, 1) for part, count in work.items()}
    for precision in ("FP32", "BF16", "INT8", "INT4"):
        if not (row := known.get((OURS, precision, named[TOKENS]))):
            continue
        seconds = (row["median_ms"] - known[OURS, precision, named[FIRST]]["median_ms"]) / 1e3
        further = (runtimes.TOKENS - 1) / seconds
        notes[f"tokens/s after the first at {precision}"] = round(further, 1)
        size = language_gb(folders, precision)
        notes[f"share of the bandwidth that they take at {precision}"] = round(size * further / bandwidth, 2)
        whole = known[OURS, precision, named[WHOLE]]
        notes[f"real-time factor of the whole at {precision}"] = round(1 / whole["throughput"], 3)
        if multiplying := [part for part in work if (OURS, precision, named[part]) in known]:
            product = bench.matmul_gflops({"FP32": "f32", "BF16": "bf16"}[precision])
            notes[f"large matrix product at {precision}, GFLOP/s"] = round(product)
            for part in multiplying:
                share = work[part] * 1e3 / known[OURS, precision, named[part]]["median_ms"] / product
                notes[f"share of it that the {part} reaches at {precision}"] = round(share, 2)
    return notes


def language_gb(folders: Mapping[str, Path], precision: str) -> float:
    """GB of the language model's weights. FP16 weights are read as such, whatever the arithmetic."""
    file = folders[precision if precision in folders else "FP16"] / xml("language")
    return bench.size_mb(file.with_suffix(".bin")) / 1e3


@torch.inference_mode()
def gflop(synthesizer: nn.Module, sentence: Sentence) -> dict[str, float]:
    """Billions of operations of the synthesizer and of its vocoder; a multiplication and an addition are two."""
    codes = torch.zeros(1, runtimes.TOKENS, dtype=torch.int64)
    ge = torch.zeros(1, synthesizer.dec.cond.in_channels, 1)
    noise = torch.from_numpy(sentence.noise)
    with FlopCounterMode(display=False) as whole:
        synthesizer(codes, torch.from_numpy(sentence.sentence_phones), ge, noise)
    with FlopCounterMode(display=False) as vocoder:
        synthesizer.dec(noise, ge)
    return {SYNTHESIZER: whole.get_total_flops() / 1e9, runtimes.VOCODER: vocoder.get_total_flops() / 1e9}


@bench.live
def live(precisions: tuple[str, ...] = parts.PRECISIONS, rounds: int = 3) -> list[dict]:
    """Speed rows of the tiny model. precisions: of parts.PRECISIONS, with FP16."""
    checkpoint = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    folders = {precision: convert.prepare("tiny", precision) for precision in precisions}
    return time_all(checkpoint, folders, rounds, together=False)


def converted(checkpoint: Path, folder: Path, group_size: int) -> dict[str, Path]:
    """IR folders of a checkpoint at all of parts.PRECISIONS, built below `folder`, each in a process of its own."""
    steps = conversion_steps(convert.to_ir, convert.compress, checkpoint, folder, parts.PRECISIONS, group_size)
    for precision, step in steps.items():
        preflight.in_child(*step, what=f"Making {precision}")
    return {precision: step[-1] for precision, step in steps.items()}


def main() -> None:
    tiny, released = convert.MODELS["tiny"], convert.MODELS["released"]
    models = paths.models_dir()
    preflight.check(ram_gb=20, disk_gb=6, what="The benchmark at the released size")  # the peaks of seven processes
    models.mkdir(parents=True, exist_ok=True)
    notes = {"ONNX Runtime": ONNX_NOTE}
    with bench.exclusive() as load, TemporaryDirectory(dir=models) as scratch:
        checkpoint = weights.resolve(tiny["checkpoint"])
        folders = converted(checkpoint, Path(scratch) / "tiny", tiny["group_size"])
        rows = measured(checkpoint, folders, rounds=7)
        checkpoint = random_checkpoint(Path(scratch) / "checkpoint")
        folders = converted(checkpoint, Path(scratch) / "released", released["group_size"])
        timed = measured(checkpoint, folders, rounds=5, compiling=True, label=SPEED_ONLY)
        notes |= limits(timed, folders, runtimes.load_network(checkpoint, "sovits"))
    measurements = {"tiny": rows, "released size": timed}
    for what, own in measurements.items():
        notes |= bench.stage_shares(own, *stages(), what)
    report.save_bench("gpt_sovits", rows + timed, notes | load)
    for own in measurements.values():
        bench.explain(own, *stages())
