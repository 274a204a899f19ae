"""What SAMBERT-HiFiGAN and its peers take: `python -m notebooks.sambert_hifigan.measuring.bench`.

The notebook measures its own voice. The rest takes minutes and comes from the file that this module writes,
results/bench/sambert_hifigan.json: a voice of the released size, with random weights, converted as the released ones
would be. Every sub-model is measured; those that run step by step as loops inside the model and, beside that, as models
of a step with the state inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils.flop_counter import FlopCounterMode

from notebooks.sambert_hifigan import convert
from notebooks.sambert_hifigan.measuring.random_checkpoint import SPEAKER, seeded_voice
from notebooks.sambert_hifigan.measuring.runtimes import (
    Arrays,
    Converted,
    Reading,
    Runtime,
    Stateful,
    Stepwise,
    compiled,
    eager,
    modules,
    onnx,
    read,
    say,
)
from notebooks.sambert_hifigan.network.acoustic import load_acoustic
from notebooks.sambert_hifigan.network.decoder import MelDecoder
from notebooks.sambert_hifigan.network.vocoder import Generator, load_vocoder
from notebooks.sambert_hifigan.pipeline import EXACT, Synthesizer
from utils import bench, report

TEXT = "今天天气很好，我们一起去公园散步吧。请问火车站怎么走？孩子们在草地上跑来跑去，非常高兴。"  # its first is timed
SPEED_ONLY = "released size, random weights, speed only"
EAGER, COMPILED, ONNX, OURS = "torch eager", "torch.compile", "onnxruntime", "openvino"
STATEFUL = "openvino, a call a step"
VOCODER, DURATIONS, STEPS = "vocoder", "durations, all steps", "decoder, all steps"
AT_ONCE = ("encoder", "variance", "memory", "finish", "source", VOCODER)  # sub-models that are called once
WHOLE, FIRST = "the whole sentence", "text to first sound, with the front end"
ARITHMETIC = (VOCODER, WHOLE, FIRST)  # what a precision other than FP32 changes: the acoustic model is always exact
UNIT = "seconds of speech/s"  # one over this is the real-time factor
Key = tuple[str, str]  # runtime, precision


def works(
    runtime: Runtime, reading: Reading, given: Mapping[str, Arrays], config: Mapping, again: Callable[[], Reading]
):
    """What is timed, by name. given: of `say`; again: reads the sentence anew."""
    calls = {part: partial(runtime.run, part, *given[part]) for part in AT_ONCE if part in given}
    return calls | {
        DURATIONS: partial(runtime.durations, *given["durations"]),
        STEPS: partial(runtime.decode, *given["decoder"]),
        WHOLE: partial(say, runtime, reading, config),
        FIRST: lambda: say(runtime, again(), config),
    }


def measured(
    voice: Path,
    folders: Mapping[str, Path],
    speaker: str,
    rounds: int,
    compiling: bool = False,
    label: str | None = None,
) -> tuple[list[dict], dict]:
    """Speed rows of every runtime and sub-model, all in turns, and notes: the machine's limits, and how near they are.

    voice: a checkpoint folder. folders: its IR at "FP32" and, where wanted, "INT8". compiling: whether torch.compile is
    among the runtimes. The ratio is to eager PyTorch at the same precision, for INT8 at the fastest. BF16 and INT8 are
    the vocoder's: acoustic model and source are exact. There is BF16 where the processor has it.
    """
    acoustic, vocoder = load_acoustic(voice / "am"), load_vocoder(voice / "voc")
    ours = Converted(folders["FP32"], **EXACT)
    config, synthesizer = ours.synthesizer.config, ours.synthesizer
    sentence = next(iter(synthesizer.frontend.sentences(TEXT)))
    reading = read(synthesizer, speaker, sentence)
    torch_runtime = Stepwise(eager(modules(acoustic, vocoder)), acoustic)
    given = say(torch_runtime, reading, config)
    seconds = given["sound"][0].size / config["sample_rate"]
    with TemporaryDirectory() as scratch:
        runtimes: dict[Key, Runtime] = {(EAGER, "FP32"): torch_runtime}
        if compiling:
            runtimes[COMPILED, "FP32"] = Stepwise(compiled(modules(acoustic, vocoder)), acoustic)
        exported = onnx(modules(acoustic, vocoder), torch_runtime.examples(given), Path(scratch))
        runtimes[ONNX, "FP32"] = Stepwise(exported, acoustic)
        runtimes[OURS, "FP32"] = ours
        if bench.torch_precision() == "BF16":
            parts = modules(acoustic, load_vocoder(voice / "voc"))
            runtimes[EAGER, "BF16"] = Stepwise(eager(parts, "BF16"), acoustic)
            runtimes[OURS, "BF16"] = Converted(folders["FP32"], INFERENCE_PRECISION_HINT="bf16")
        if "INT8" in folders:
            runtimes[OURS, "INT8"] = Converted(folders["INT8"])
        calls = {}
        for (runtime, precision), made in runtimes.items():
            todo = works(made, reading, given, config, partial(read, synthesizer, speaker, sentence))
            kept = todo if precision == "FP32" else ARITHMETIC
            calls |= {(runtime, precision, name): todo[name] for name in kept}
        stepwise = Stateful(acoustic)
        calls[STATEFUL, "FP32", DURATIONS] = partial(stepwise.durations, *given["durations"])
        calls[STATEFUL, "FP32", STEPS] = partial(stepwise.decode, *given["decoder"])
        timings = bench.interleave(calls, rounds)
    rows = []
    for (runtime, precision, name), timing in timings.items():
        peers = {kind: x for (its, kind, work), x in timings.items() if (its, work) == (EAGER, name)}
        peer = peers.get(precision) or min(peers.values(), key=lambda x: x.median_ms)
        row = bench.row(
            runtime,
            precision,
            f"{name}, {seconds:.2g} s of speech",
            timing,
            amount=seconds,
            unit=UNIT,
            torch=peer,
            model_mb=bench.size_mb(folders["INT8" if precision == "INT8" else "FP32"]) if runtime == OURS else None,
            label=label,
        )
        rows.append(row)
        print(f"{runtime} {precision}, {row['workload']}: {timing.median_ms:.1f} ms", flush=True)
    return rows, limits(timings, acoustic.decoder, vocoder, given)


def limits(timings: Mapping, decoder: MelDecoder, vocoder: Generator, given: Mapping[str, Arrays]) -> dict[str, float]:
    """How far OpenVINO is from what the machine can do, measured now.

    The vocoder multiplies, so it is held against a large matrix product. A step of the decoder reads every weight
    once, so it is held against the bandwidth of memory; what stays in a cache between two steps may exceed it.
    """
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        vocoder.filter(*map(torch.from_numpy, given[VOCODER]))
    work, bandwidth = counter.get_total_flops() / 1e9, bench.read_bandwidth_gbs()
    notes = {"operations of the vocoder for the sentence, GFLOP": round(work, 1)}
    notes["read bandwidth, GB/s"] = round(bandwidth, 1)
    for precision, dtype in (("FP32", "f32"), ("BF16", "bf16")):
        if (OURS, precision, VOCODER) in timings:
            product = bench.matmul_gflops(dtype)
            notes[f"large {dtype} matrix product, GFLOP/s"] = round(product)
            reached = work * 1e3 / timings[OURS, precision, VOCODER].median_ms / product
            notes[f"share of it that the vocoder reaches at {precision}"] = round(reached, 2)
    read_by_a_step = [p for name, p in decoder.named_parameters() if "w_h_kv" not in name]  # those are read once
    size = sum(p.numel() for p in read_by_a_step) * 4 / 1e9 * given["decoder"][0].shape[1]
    share = size * 1e3 / timings[OURS, "FP32", STEPS].median_ms / bandwidth
    return notes | {"share of the bandwidth that a step of the decoder reaches": round(share, 2)}


def main() -> None:
    with bench.exclusive() as load, TemporaryDirectory() as scratch:
        voice = seeded_voice(Path(scratch) / "voice")
        folders = {"FP32": convert.to_ir(voice, Path(scratch) / "fp32", half=False)}
        half = convert.to_ir(voice, Path(scratch) / "fp16")
        mels = [spoken.mel for spoken in Synthesizer(half).stream(TEXT, SPEAKER)]
        folders["INT8"] = convert.quantize(half, mels, Path(scratch) / "int8")
        rows, notes = measured(voice, folders, SPEAKER, rounds=7, compiling=True, label=SPEED_ONLY)
    report.save_bench("sambert_hifigan", rows, notes | load)
