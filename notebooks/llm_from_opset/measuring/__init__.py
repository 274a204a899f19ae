"""Parity, perplexity and speed of models that are built from operations, and what their conversion takes.

`python -m notebooks.llm_from_opset.measuring` writes speed, time and memory to results/bench/llm_from_opset.json.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

import numpy as np
import psutil

from notebooks.llm_from_opset import convert
from notebooks.llm_from_opset.pipeline import Checkpoint, build
from utils import bench, compare, preflight, report
from utils.models import llm, llm_speed
from utils.models.llm import FP32_PROPERTIES, MODEL_XML, Session, perplexity

METRIC = "perplexity of 256 tokens"
TOKENS = 256  # of the evaluation text
ANSWER_TOKENS = 64
MAX_PERPLEXITY = {"FP16": 1.01, "INT8": 1.03, "mixed": 1.35, "INT4": 1.35}  # times that of PyTorch
QWEN_1_5B = {"vocab_size": 151_936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
             "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True}  # fmt: skip
RANDOM = "random weights, speed and memory only"


# --- Parity -----------------------------------------------------------------------------------------------------


def parity(reference, prompt: np.ndarray, folders: Mapping[str, Path], device: str = "CPU") -> list[dict]:
    """The built FP16 model in FP32 arithmetic: logits of a prompt [1, tokens], and the ANSWER_TOKENS tokens after it.

    The tokens are compared with those of PyTorch, of the exported model, and of both pipelines of openvino_genai.
    folders: IR folders, "built" and "exported".
    """
    import torch

    built = Session(folders["built"] / MODEL_XML, device, **FP32_PROPERTIES)
    ids, count = torch.from_numpy(prompt), ANSWER_TOKENS
    length = {"min_new_tokens": count, "max_new_tokens": count, "do_sample": False}
    with torch.inference_mode():
        logits = reference(ids).logits
        expected = reference.generate(ids, attention_mask=torch.ones_like(ids), **length)[:, prompt.shape[1] :]
    rows = [compare.parity("SmolLM2: logits of every prompt token", built.prefill(prompt), logits, 1e-2)]
    tokens = built.generate(prompt, count)
    others = {
        "of PyTorch": expected,
        "of the exported model": Session(folders["exported"] / MODEL_XML, device, **FP32_PROPERTIES).generate(
            prompt, count
        ),
        "of LLMPipeline": genai_tokens(folders["built"], prompt, count, "LLMPipeline", device),
        "of continuous batching": genai_tokens(folders["built"], prompt, count, "ContinuousBatchingPipeline", device),
    }
    return rows + [compare.parity(f"SmolLM2: {count} tokens {of}", tokens, other, 0) for of, other in others.items()]


def genai_tokens(folder: Path, prompt: np.ndarray, count: int, pipeline: str, device: str = "CPU") -> np.ndarray:
    """Greedy tokens [1, count] after a prompt [1, tokens], of a pipeline of openvino_genai in FP32 arithmetic."""
    import openvino as ov
    import openvino_genai as genai

    settings = genai.GenerationConfig()
    settings.max_new_tokens, settings.ignore_eos, ids = count, True, ov.Tensor(prompt.astype(np.int64))
    if pipeline == "LLMPipeline":
        answer = genai.LLMPipeline(str(folder), device, **FP32_PROPERTIES).generate(ids, settings).tokens[0]
    else:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        batching = genai.ContinuousBatchingPipeline(str(folder), scheduler, device, FP32_PROPERTIES)
        answer = batching.generate([ids], [settings])[0].m_generation_ids[0]
    return np.array(answer)[None]


# --- Perplexity -------------------------------------------------------------------------------------------------


def quality(
    reference,
    checkpoint: Path,
    mixed: Callable[[str], str],
    exported: Mapping[str, Path],
    group_size: int,
    device: str = "CPU",
) -> list[dict]:
    """Quality rows of perplexity: built at each precision and at `mixed`; exported; of two models built wrongly.

    checkpoint: a transformers folder. mixed: the precision for a weight's name. exported: IR folders by precision.
    group_size: weights that share a scale at INT4.
    """
    import torch

    text = llm.tokenize(checkpoint, "evaluation")[:, :TOKENS]  # [1, 256]
    source = Checkpoint(checkpoint)

    def measured(config: Mapping, weights: Mapping, precision: str | Callable = "FP16") -> float:
        return of_model(build(config, weights, precision, group_size))

    def of_model(model) -> float:
        return perplexity(Session(model, device, **FP32_PROPERTIES).prefill, text)

    with torch.inference_mode():
        best = perplexity(lambda ids: reference(torch.from_numpy(ids)).logits.numpy(), text)
    rows = []
    for name, factor in MAX_PERPLEXITY.items():
        value = measured(source.config, source, mixed if name == "mixed" else name)
        rows.append(compare.quality(METRIC, name, value, best, factor * best, "lower"))
    norms = ("input_layernorm", "post_attention_layernorm")
    exchanged = {name.replace(norms[0], "x").replace(norms[1], norms[0]).replace("x", norms[1]) if "norm" in name
                 else name: source[name] for name in source}  # fmt: skip
    wrong = {"norms of attention and MLP exchanged": (source.config, exchanged),
             "positions turn 1,000 times as fast": (faster(source.config), source)}  # fmt: skip
    for name, (config, weights) in wrong.items():
        limit = MAX_PERPLEXITY["INT4"] * best
        rows.append(compare.control(METRIC, name, measured(config, weights), limit, "lower"))
    for name, folder in exported.items():
        value = of_model(folder / MODEL_XML)
        rows.append(compare.quality(f"{METRIC}, exported and compressed by NNCF", name, value, best, None, "lower"))
    return rows


def faster(config: Mapping) -> dict:
    """A configuration whose positions have a thousandth of the base."""
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10_000.0)}
    return {**config, "rope_parameters": {**rope, "rope_theta": rope["rope_theta"] / 1000}}


# --- Speed ------------------------------------------------------------------------------------------------------


@bench.live
def generation(model: str, precisions: tuple[str, ...], rounds: int = 3, compiling: bool = False) -> list[dict]:
    """Speed rows of the built and of the exported model, and of PyTorch and ONNX Runtime; see `llm_speed`."""
    checkpoint = convert.checkpoint_folder(model)
    settings = [
        llm_speed.openvino_setting(f"openvino {name}", precision, prepare(model, precision))
        for precision in precisions
        for name, prepare in (("built", convert.prepare), ("exported", convert.exported))
    ]
    settings += llm_speed.torch_settings(checkpoint, compiling)
    settings.append(llm_speed.onnx_setting(llm_speed.onnx_folder(convert.MODELS[model]["checkpoint"], checkpoint)))
    return bench.compare(settings, llm_speed.WORKLOADS, rounds)


# --- Conversion -------------------------------------------------------------------------------------------------


def conversions(checkpoint: Path, size: str, group_size: int, precisions: tuple[str, ...], folder: Path, label=None):
    """Speed rows of converting a checkpoint, and notes of the memory that each process held as its own.

    Each conversion has a process of its own. The exported model is converted by optimum-intel and compressed by NNCF,
    whose rows have the time of both. precisions: "FP16" first.
    size: of the checkpoint, as the rows say it. folder: for the IRs, "built INT8" and so on.
    """
    rows, notes, export = [], {}, []
    for name in ("built", "exported"):
        for precision in precisions:
            target, base = folder / f"{name} {precision}", folder / f"{name} FP16"
            if name == "built":
                step = (_without_torch, convert.to_ir, checkpoint, precision, group_size, target)
            elif precision == "FP16":
                step = (llm.to_ir, checkpoint, base)
            else:
                step = (llm.compress, base, {**llm.COMPRESSIONS[precision], "group_size": group_size}, target)
            taken = [*export, preflight.in_child(_measured, *step, what=f"{name} {precision}")]
            export = taken[:1] if name == "exported" else []
            seconds, own, total = sum(t[0] for t in taken), max(t[1] for t in taken), max(t[2] for t in taken)
            sizes = {"peak_rss_mb": total, "model_mb": llm_speed.weights_mb(target), "label": label}
            workload = f"conversion, {size}"
            row = bench.row(f"openvino {name}", precision, workload, bench.Timing.of([1e3 * seconds]), **sizes)
            rows.append(row | {"throughput": None, "unit": None})
            notes[f"{workload}: own memory of {name} {precision}, MB"] = round(own)
            print(f"{workload}, {name} {precision}: {seconds:.1f} s, {own:.0f} of {total:.0f} MB", flush=True)
    return rows, notes


def _without_torch(step: Callable, *arguments) -> None:
    sys.modules["torch"] = None  # from now on its import is an error
    step(*arguments)


def _measured(step: Callable, *arguments) -> tuple[float, float, float]:
    """Seconds of a call, and the most memory in MB of this process: its own, and with the pages of mapped files.

    The system can take back the pages of mapped files at any time, and read them again.
    """
    done, peaks, process = threading.Event(), [0.0, 0.0], psutil.Process()

    def watch() -> None:
        while not done.is_set():
            memory = process.memory_info()
            own = memory.rss - getattr(memory, "shared", 0)  # only Linux tells them apart
            peaks[:] = max(peaks[0], own / 1e6), max(peaks[1], memory.rss / 1e6)
            sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    begin = perf_counter()
    try:
        step(*arguments)
    finally:
        seconds = perf_counter() - begin
        done.set()
        thread.join()
    return seconds, *peaks


def qwen_1_5b(companions: Path, folder: Path) -> Path:
    """A checkpoint of random weights with the size of Qwen2.5-1.5B and the tokenizer of `companions`, in `folder`."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from utils.models import random_checkpoint

    config = Qwen2Config(**QWEN_1_5B)
    with torch.device("meta"):
        network = Qwen2ForCausalLM(config)
    del network.lm_head  # it is the embedding
    options = {"architectures": ["Qwen2ForCausalLM"], "dtype": "float16"}
    return random_checkpoint.checkpoint(network, config.to_dict() | options, companions, folder)


def main() -> None:
    small = convert.checkpoint_folder()
    with bench.exclusive() as load, TemporaryDirectory() as scratch:
        rows = generation("tiny", ("FP16", "INT8", "INT4"), rounds=5, compiling=True)
        large = preflight.in_child(qwen_1_5b, small, Path(scratch) / "checkpoint")
        notes = dict(load)
        for checkpoint, size, group, precisions, label in (
            (small, "135 million parameters", 64, ("FP16", "INT8", "INT4"), None),
            (large, "1.5 billion parameters", 128, ("FP16", "INT8"), RANDOM),
        ):
            more, own = conversions(checkpoint, size, group, precisions, Path(scratch) / size, label)
            rows, notes = rows + more, notes | own
        settings = [
            llm_speed.openvino_setting(f"openvino {name}", "INT8", Path(scratch) / size / f"{name} INT8")
            for name in ("built", "exported")
        ]
        rows += bench.compare(settings, llm_speed.WORKLOADS, 3, label=f"1.5 billion parameters, {RANDOM}")
    report.save_bench("llm_from_opset", rows, notes)
