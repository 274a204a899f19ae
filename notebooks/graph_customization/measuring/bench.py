"""Speed and memory of customized graphs and other runtimes: `python -m notebooks.graph_customization.measuring`.

The notebook measures `generation` live. Time and memory against the prompt length take minutes to measure: the command
writes them to results/bench/graph_customization.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from notebooks.graph_customization import convert
from notebooks.graph_customization.pipeline import InsertSlice, customize
from utils import bench, report
from utils.models.llm import Session

PREFILL_TOKENS = 512  # prompt of the prefill workload
DECODE_PROMPT_TOKENS = 16  # prompt of the decoding workload
DECODE_TOKENS = 32  # generated in the decoding workload
PROMPT_LENGTHS = (16, 64, 256, 1024, 2048)  # tokens
FIRST = f"first token of a {PREFILL_TOKENS}-token prompt"
DECODE = f"{DECODE_TOKENS} tokens after a {DECODE_PROMPT_TOKENS}-token prompt"

Generate = Callable[[np.ndarray, int], object]  # token ids [1, n], number of tokens to generate


def graph(folder: Path, sliced: bool):
    """The model of an IR folder, with or without InsertSlice."""
    import openvino as ov

    model = ov.Core().read_model(folder / convert.MODEL_XML)
    if sliced:
        customize(model, [InsertSlice()])
    return model


def prefill_once(folder: Path, sliced: bool, length: int) -> None:
    """Load a model and run one prompt, in a new process whose memory is measured."""
    Session(graph(folder, sliced)).prefill(_prompt(length))


def prompt_curve(rounds: int = 3, lengths: tuple[int, ...] = PROMPT_LENGTHS) -> list[dict]:
    """Speed rows: prefill time and peak memory against prompt length, with two sizes of the vocabulary (tiny)."""
    rows = []
    heads = {
        "vocabulary 49,152": (convert.prepare("tiny"), None),
        "vocabulary 151,936": (convert.prepare_wide("tiny"), "random output layer, speed only"),
    }
    for vocabulary, (folder, label) in heads.items():
        sessions = {name: Session(graph(folder, name == "sliced")) for name in ("base", "sliced")}
        for length in lengths:
            prompt = _prompt(length)
            calls = {name: partial(session.prefill, prompt) for name, session in sessions.items()}
            timings = bench.interleave(calls, rounds)
            for name, timing in timings.items():
                rows.append(
                    bench.row(
                        f"openvino {name}",
                        "FP16",
                        f"prefill {length} tokens, {vocabulary}",
                        timing,
                        amount=length,
                        unit="tokens/s",
                        peak_rss_mb=bench.peak_rss_mb(prefill_once, folder, name == "sliced", length),
                        label=label,
                    )
                )
                print(f"{rows[-1]['runtime']}, {rows[-1]['workload']}: {timing.median_ms:.0f} ms", flush=True)
    return rows


@bench.live
def generation(folders: Mapping[str, Path], model: str = "tiny", rounds: int = 3) -> list[dict]:
    """Speed rows: time to the first token and decoding, of OpenVINO and of other runtimes.

    folders: IR folders by precision, "FP16" and "INT4". All are timed alternately in one run. Every call gets a new
    random prompt, because openvino_genai caches earlier prompts. The ratio is to PyTorch at its faster precision on
    this machine, which is the one that OpenVINO chooses.
    """
    rng = np.random.default_rng(0)
    runtimes = _runtimes(folders, model)
    rows = []
    for workload, prompt, count, unit in (
        (FIRST, PREFILL_TOKENS, 1, "prompt tokens/s"),
        (DECODE, DECODE_PROMPT_TOKENS, DECODE_TOKENS, "tokens/s"),
    ):

        def call(generate: Generate, prompt: int = prompt, count: int = count) -> None:
            generate(rng.integers(100, 40_000, (1, prompt)), count)

        calls = {name: partial(call, generate) for name, (generate, _) in runtimes.items()}
        timings = bench.interleave(calls, rounds)
        for (runtime, precision), timing in timings.items():
            rows.append(
                bench.row(
                    runtime,
                    precision,
                    workload,
                    timing,
                    amount=prompt if workload == FIRST else count,
                    unit=unit,
                    torch=timings["torch eager", bench.torch_precision()],
                    model_mb=runtimes[runtime, precision][1],
                )
            )
    return rows


def limits(rows: list[dict], folder: Path) -> dict[str, float]:
    """Notes: the share of the machine's memory bandwidth and arithmetic that OpenVINO uses, measured now.

    folder: an IR folder of the model, for its configuration. A decoded token reads every weight once. A prompt token
    costs two operations for each weight of the layers. The output layer runs for the last token only.
    """
    decode, first = (_fastest(rows, workload) for workload in (DECODE, FIRST))
    gigabytes = decode["model_mb"] / 1e3
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    kv = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    weights = config["num_hidden_layers"] * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * mlp)
    bandwidth, product = bench.read_bandwidth_gbs(), bench.matmul_gflops("bf16")
    gflops = 2 * weights * PREFILL_TOKENS / 1e6 / first["median_ms"]
    return {
        "read bandwidth, GB/s": round(bandwidth, 1),
        f"decoding ({decode['precision']}), share of the read bandwidth": round(
            gigabytes * decode["throughput"] / bandwidth, 2
        ),
        "largest bf16 matrix product, GFLOP/s": round(product),
        f"prefill ({first['precision']}), share of that product": round(gflops / product, 2),
    }


def _fastest(rows: list[dict], workload: str) -> dict:
    ours = [row for row in rows if row["runtime"].startswith("openvino") and row["workload"] == workload]
    return min(ours, key=lambda row: row["median_ms"])


def _weights_mb(folder: Path) -> float:
    return bench.size_mb((folder / convert.MODEL_XML).with_suffix(".bin"))


def _runtimes(folders: Mapping[str, Path], model: str) -> dict[tuple[str, str], tuple[Generate, float]]:
    """(runtime, precision) -> its function that generates tokens, and the size of its weights in MB."""
    runtimes: dict[tuple[str, str], tuple[Generate, float]] = {}
    for precision, folder in folders.items():
        for name in ("base", "sliced"):
            session = Session(graph(folder, name == "sliced"))
            runtimes[f"openvino {name}", precision] = (session.generate, _weights_mb(folder))
        runtimes["openvino_genai", precision] = (_genai(folder), _weights_mb(folder))
    checkpoint, onnx = convert.checkpoint_folder(model), convert.prepare_onnx(model)
    faster = bench.torch_precision()
    runtimes["torch eager", faster] = (_torch(checkpoint, faster), bench.size_mb(checkpoint))
    runtimes["onnxruntime-genai", "INT4"] = (_onnx(onnx), bench.size_mb(onnx / "model.onnx.data"))
    return runtimes


def _genai(folder: Path) -> Generate:
    import openvino as ov
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(str(folder), "CPU")

    def generate(token_ids: np.ndarray, count: int) -> None:
        settings = genai.GenerationConfig()
        settings.max_new_tokens, settings.ignore_eos = count, True
        pipeline.generate(ov.Tensor(token_ids.astype(np.int64)), settings)

    return generate


def _torch(checkpoint: Path, precision: str) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    dtype = {"BF16": torch.bfloat16, "FP32": torch.float32}[precision]
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()

    def generate(token_ids: np.ndarray, count: int) -> None:
        ids, past = torch.from_numpy(token_ids), None
        with torch.inference_mode():
            for _ in range(count):
                output = model(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
                past, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)

    return generate


def _onnx(folder: Path) -> Generate:
    import onnxruntime_genai as genai

    model = genai.Model(str(folder))

    def generate(token_ids: np.ndarray, count: int) -> None:
        settings = genai.GeneratorParams(model)
        length = token_ids.shape[1] + count
        settings.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = genai.Generator(model, settings)
        generator.append_tokens(token_ids[0].tolist())
        for _ in range(count):
            generator.generate_next_token()

    return generate


def _prompt(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(100, 40_000, (1, length))


def main() -> None:
    folders = {"FP16": convert.prepare(), "INT4": convert.prepare(precision="INT4 scale estimation")}
    with bench.exclusive() as load:
        generated = generation(folders, rounds=7)
        notes = limits(generated, folders["FP16"]) | load
        rows = generated + prompt_curve(rounds=5)
    report.save_bench("graph_customization", rows, notes)
