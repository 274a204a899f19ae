"""What GPT-SoVITS and its peers take: `python -m notebooks.gpt_sovits.measuring.bench`.

The notebook measures `live`, the tiny model. The rest takes minutes and comes from the file that this module writes,
results/bench/gpt_sovits.json: the same at the size of the released v2, with weights drawn from a seed, which are
converted as the released ones would be. The decoder of tokens, whose KV cache is inside OpenVINO, stands beside itself
with the cache going through Python after every token, and without one.
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
from notebooks.gpt_sovits.measuring import runtimes as others
from notebooks.gpt_sovits.measuring.random_checkpoint import seeded_checkpoint
from notebooks.gpt_sovits.measuring.runtimes import Arrays, Converted, Eager, Exported, Runtime, Sentence, greedy, say
from notebooks.gpt_sovits.pipeline import BERT
from utils import bench, paths, preflight, report, weights
from utils.models import parts
from utils.models.llm import FP32_PROPERTIES
from utils.models.parts import xml

SPEED_ONLY = "released size of v2, random weights, speed only"
EAGER, COMPILED, ONNX, OURS = "torch eager", "torch.compile", "onnxruntime", "openvino"
PASSED, NO_CACHE = "openvino, cache through Python", "openvino, no cache"
ABOUT_ONNX = "no style, which cannot be exported; a synthesizer for one length of sentence"
RATE = 25  # tokens that are a second of speech
FIRST, TOKENS, WHOLE = "first token", "tokens", "whole"
SYNTHESIZER = "synthesizer"
LISTENED = ("hubert", "semantic", "style")  # parts that hear the recording
CHANGED = {  # what a precision other than FP32 changes
    "BF16": ("hubert", BERT, SYNTHESIZER, others.VOCODER, FIRST, TOKENS, WHOLE),
    "INT8": ("hubert", BERT, FIRST, TOKENS, WHOLE),
    "INT4": (FIRST, TOKENS, WHOLE),
}
Key = tuple[str, str]  # runtime, precision


def names() -> dict[str, str]:
    """How rows call what is timed."""
    speech = f"{others.TOKENS / RATE:.2g} s of speech"
    listened = {part: f"{part}, {others.REFERENCE:.2g} s of a recording" for part in LISTENED}
    return listened | {
        BERT: f"{BERT}, {others.CHARACTERS} characters",
        SYNTHESIZER: f"{SYNTHESIZER}, {speech}",
        others.VOCODER: f"{others.VOCODER}, {speech}",
        FIRST: f"first token, after {2 * others.CHARACTERS} phones and a recording",
        TOKENS: f"{others.TOKENS} tokens, after {2 * others.CHARACTERS} phones and a recording",
        WHOLE: f"the whole sentence, {speech}, and its recording",
    }


def rate(work: str) -> tuple[float, str]:
    """How much one call does, and of what. One over seconds of speech in a second is the real-time factor."""
    if work in (SYNTHESIZER, others.VOCODER):
        return 2 * others.TOKENS, "frames/s"
    if work in (FIRST, TOKENS):
        return (1, "prompts/s") if work == FIRST else (others.TOKENS, "tokens/s")
    return others.TOKENS / RATE, "seconds of speech/s"


def decoding(decoder: others.Decoder, given: Mapping[str, Arrays]) -> dict[str, Callable[[], object]]:
    """What is timed of a decoder of tokens."""
    return {FIRST: partial(decoder.prefill, *given["tokens"]), TOKENS: partial(greedy, decoder, *given["tokens"])}


def works(runtime: Runtime, sentence: Sentence, given: Mapping[str, Arrays]) -> dict[str, Callable[[], object]]:
    """What is timed of a runtime, by its name. given: of `say`."""
    calls = {part: partial(runtime.run, part, *given[part]) for part in runtime.parts}
    if "hubert" in runtime.parts:  # not the synthesizer alone
        calls |= decoding(runtime.decoder, given)
    return calls | ({WHOLE: partial(say, runtime, sentence)} if "style" in runtime.parts else {})


def eager(checkpoint: Path, precision: str) -> Eager:
    """PyTorch at "FP32" or "BF16"."""
    return Eager(checkpoint, precision)


def openvino(folder: Path, precision: str, vocoder: Path | None = None) -> Converted:
    """The models of an IR folder, at what the device chooses for the integers of INT8 and INT4."""
    chosen = {"FP32": FP32_PROPERTIES, "BF16": {"INFERENCE_PRECISION_HINT": "bf16"}}
    return Converted(folder, vocoder, **chosen.get(precision, {}))


def places(checkpoint: Path, folders: Mapping[str, Path]) -> dict[Key, Path]:
    """The runtimes that can be made from a folder alone: where their weights are.

    folders: the IR at "FP16" and, where wanted, "INT8" and "INT4". BF16 is there where the processor has it.
    """
    floats = bench.torch_precisions()
    found = {(EAGER, precision): checkpoint for precision in floats}
    found |= {(OURS, precision): folders["FP16"] for precision in floats}
    return found | {(OURS, precision): folder for precision, folder in folders.items() if precision != "FP16"}


def time_all(
    checkpoint: Path, folders: Mapping[str, Path], rounds: int, compiling: bool = False, label: str | None = None
) -> list[dict]:
    """Speed rows of every runtime and part, all in turns; folders: see `places`.

    compiling: whether torch.compile is among the runtimes. The ratio is to eager PyTorch at the same precision, for
    INT8 and INT4 to the fastest.
    """
    sentence, where = others.sentence(folders["FP16"]), places(checkpoint, folders)
    with TemporaryDirectory() as scratch:
        vocoder = others.convert_vocoder(checkpoint, Path(scratch) / "vocoder.xml")
        runtimes: dict[Key, Runtime] = {
            (runtime, precision): eager(path, precision) if runtime == EAGER else openvino(path, precision, vocoder)
            for (runtime, precision), path in where.items()
        }
        given = say(runtimes[EAGER, "FP32"], sentence)
        if compiling:
            runtimes[COMPILED, "FP32"] = Eager(checkpoint, compiling=True)
        others.export(checkpoint, given, Path(scratch))
        runtimes[ONNX, "FP32"] = Exported(Path(scratch))
        calls = {}
        for (runtime, precision), made in runtimes.items():
            todo = works(made, sentence, given)
            kept = (name for name in todo if name in CHANGED.get(precision, todo))
            calls |= {(runtime, precision, name): todo[name] for name in kept}
        decoders = {
            PASSED: others.passed(checkpoint, folders["FP16"], **FP32_PROPERTIES),
            NO_CACHE: others.Recomputing(runtimes[OURS, "FP32"].decoder),
        }
        for runtime, decoder in decoders.items():
            calls[runtime, "FP32", TOKENS] = decoding(decoder, given)[TOKENS]
        timings = bench.interleave(calls, rounds)
    return [_row(key, timings, bench.size_mb(where[key[:2]]) if key[:2] in where else None, label) for key in timings]


def _row(key: tuple[str, str, str], timings: Mapping, model_mb: float | None, label: str | None) -> dict:
    runtime, precision, work = key
    torch_timings = {kind: x for (its, kind, other), x in timings.items() if (its, other) == (EAGER, work)}
    peer = torch_timings.get(precision) or min(torch_timings.values(), key=lambda x: x.median_ms)
    amount, unit = rate(work)
    options = {"amount": amount, "unit": unit, "torch": peer, "model_mb": model_mb, "label": label}
    row = bench.row(runtime, precision, names()[work], timings[key], **options)
    print(f"{runtime} {precision}, {row['workload']}: {row['median_ms']:.1f} ms", flush=True)
    return row


def once(runtime: str, path: Path, precision: str, sentence: Sentence) -> None:
    """What a fresh process does to have its memory measured."""
    say((eager if runtime == EAGER else openvino)(path, precision), sentence)


def measured(
    checkpoint: Path, folders: Mapping[str, Path], rounds: int, compiling: bool = False, label: str | None = None
) -> list[dict]:
    """The rows of `time_all`, those of `places` with the memory that a process takes which says the sentence alone."""
    sentence, memory = others.sentence(folders["FP16"]), {}
    for (runtime, precision), path in places(checkpoint, folders).items():
        memory[runtime, precision] = bench.peak_rss_mb(once, runtime, path, precision, sentence)
        print(f"{runtime} {precision}: up to {memory[runtime, precision]:.0f} MB", flush=True)
    rows = time_all(checkpoint, folders, rounds, compiling, label)
    return [row | {"peak_rss_mb": memory.get((row["runtime"], row["precision"]))} for row in rows]


def limits(rows: list[dict], folders: Mapping[str, Path], synthesizer: nn.Module) -> dict[str, float]:
    """How far OpenVINO is from what the machine can do, measured now; rows: of `time_all`.

    A token after the first reads every weight of the language model once, so that is held against the bandwidth of
    memory. The synthesizer multiplies, and is held against a large matrix product.
    """
    known = {(row["runtime"], row["precision"], row["workload"]): row for row in rows}
    named, work = names(), flops(synthesizer, others.sentence(folders["FP16"])) / 1e9
    bandwidth = bench.read_bandwidth_gbs()
    notes = {"read bandwidth, GB/s": round(bandwidth, 1)}
    notes["operations of the synthesizer for the sentence, GFLOP"] = round(work, 1)
    for precision in ("FP32", "BF16", "INT8", "INT4"):
        if not (row := known.get((OURS, precision, named[TOKENS]))):
            continue
        seconds = (row["median_ms"] - known[OURS, precision, named[FIRST]]["median_ms"]) / 1e3
        further = (others.TOKENS - 1) / seconds
        notes[f"tokens/s after the first at {precision}"] = round(further, 1)
        size = language_gb(folders, precision)
        notes[f"share of the bandwidth that they take at {precision}"] = round(size * further / bandwidth, 2)
        whole = known[OURS, precision, named[WHOLE]]
        notes[f"real-time factor of the whole at {precision}"] = round(1 / whole["throughput"], 3)
        if row := known.get((OURS, precision, named[SYNTHESIZER])):
            product = bench.matmul_gflops({"FP32": "f32", "BF16": "bf16"}[precision])
            notes[f"large matrix product at {precision}, GFLOP/s"] = round(product)
            share = work * 1e3 / row["median_ms"] / product
            notes[f"share of it that the synthesizer reaches at {precision}"] = round(share, 2)
    return notes


def language_gb(folders: Mapping[str, Path], precision: str) -> float:
    """GB of the language model's weights. Those in FP16 are read as such, whatever the arithmetic."""
    file = folders[precision if precision in folders else "FP16"] / xml("language")
    return bench.size_mb(file.with_suffix(".bin")) / 1e3


@torch.inference_mode()
def flops(synthesizer: nn.Module, sentence: Sentence) -> int:
    """Operations of the synthesizer, a multiplication and an addition being two."""
    codes = torch.zeros(1, others.TOKENS, dtype=torch.int64)
    ge = torch.zeros(1, synthesizer.dec.cond.in_channels, 1)
    with FlopCounterMode(display=False) as counter:
        synthesizer(codes, torch.from_numpy(sentence.said), ge, torch.from_numpy(sentence.noise))
    return counter.get_total_flops()


def live(precisions: tuple[str, ...] = parts.PRECISIONS, rounds: int = 3) -> list[dict]:
    """What the notebook measures: the tiny model, all in this process. precisions: of parts.PRECISIONS, FP16 too."""
    checkpoint = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    return time_all(checkpoint, {precision: convert.prepare("tiny", precision) for precision in precisions}, rounds)


def converted(checkpoint: Path, folder: Path, group_size: int) -> dict[str, Path]:
    """IR folders of a checkpoint at all of parts.PRECISIONS, made now below `folder`, each in a process of its own."""
    folders = {precision: folder / precision for precision in parts.PRECISIONS}
    for precision, made in folders.items():
        step = (convert.to_ir, checkpoint, made)
        if precision != "FP16":
            step = (convert.compress, folders["FP16"], precision, group_size, made)
        preflight.in_child(*step, what=f"Making {precision}")
    return folders


def main() -> None:
    tiny, released = convert.MODELS["tiny"], convert.MODELS["released"]
    place = paths.models_dir()
    preflight.check(ram_gb=14, disk_gb=6, what="The benchmark at the released size")
    place.mkdir(parents=True, exist_ok=True)
    notes = {"ONNX Runtime": ABOUT_ONNX}
    with bench.exclusive() as load, TemporaryDirectory(dir=place) as scratch:
        checkpoint = weights.resolve(tiny["checkpoint"])
        folders = converted(checkpoint, Path(scratch) / "tiny", tiny["group_size"])
        rows = measured(checkpoint, folders, rounds=7)
        checkpoint = seeded_checkpoint(Path(scratch) / "checkpoint")
        folders = converted(checkpoint, Path(scratch) / "released", released["group_size"])
        timed = measured(checkpoint, folders, rounds=5, compiling=True, label=SPEED_ONLY)
        notes |= limits(timed, folders, others.networks(checkpoint)["sovits"])
    report.save_bench("gpt_sovits", rows + timed, notes | load)
