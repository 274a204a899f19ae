"""Speed and memory of customized graphs and other runtimes: `python -m notebooks.graph_customization.measuring`.

The notebook measures `generation` live. Time and memory against the prompt length take minutes to measure: the command
writes them to results/bench/graph_customization.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import openvino as ov

from notebooks.graph_customization import convert
from notebooks.graph_customization.pipeline import InsertSlice, customize
from utils import bench, report
from utils.models import llm_speed
from utils.models.llm import Session
from utils.models.llm_speed import DECODE, FIRST, PREFILL_TOKENS

PROMPT_LENGTHS = (16, 64, 256, 1024, 2048)  # tokens


def insert_slice(model: ov.Model) -> None:
    """Insert the slice into a model."""
    customize(model, [InsertSlice()])


def graph(folder: Path, sliced: bool) -> ov.Model:
    """The model of an IR folder, with or without InsertSlice."""
    model = ov.Core().read_model(folder / convert.MODEL_XML)
    if sliced:
        insert_slice(model)
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
def generation(
    folders: Mapping[str, Path], model: str = "tiny", rounds: int = 3, compiling: bool = False
) -> list[dict]:
    """Speed rows: time to the first token and decoding, of OpenVINO and of other runtimes.

    folders: IR folders by precision, "FP16" and "INT4". compiling: whether torch.compile is among the runtimes; then
    all are timed alternately, which takes 10 GB of memory.
    """
    settings = []
    for weights, folder in folders.items():
        precision = bench.arithmetic(weights)
        settings += [
            llm_speed.openvino_setting("openvino base", precision, folder),
            llm_speed.openvino_setting("openvino sliced", precision, folder, insert_slice),
            llm_speed.genai_setting(precision, folder),
        ]
    checkpoint, name = convert.checkpoint_folder(model), convert.MODELS[model]["checkpoint"]
    settings += llm_speed.torch_settings(checkpoint, compiling)
    settings.append(llm_speed.onnx_setting(llm_speed.onnx_folder(name, checkpoint)))
    return bench.compare(settings, llm_speed.WORKLOADS, rounds, together=compiling)


def limits(rows: list[dict], folder: Path) -> dict[str, float]:
    """Notes: the share of the machine's memory bandwidth and arithmetic that OpenVINO uses, measured now.

    folder: an IR folder of the model, for its configuration. A decoded token reads every weight once. A prompt token
    costs two operations for each weight of the layers. The output layer runs for the last token only.
    """
    decode, first = (_fastest(rows, workload) for workload in (DECODE, FIRST))
    gigabytes = decode["model_mb"] / 1e3
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    bandwidth, product = bench.read_bandwidth_gbs(), bench.matmul_gflops("bf16")
    gflops = 2 * llm_speed.layer_weights(config) * PREFILL_TOKENS / 1e6 / first["median_ms"]
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


def _prompt(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(100, 40_000, (1, length))


def main() -> None:
    folders = {"FP16": convert.prepare(), "INT4": convert.prepare(precision="INT4 scale estimation")}
    with bench.exclusive() as load:
        generated = generation(folders, rounds=7, compiling=True)
        notes = limits(generated, folders["FP16"]) | load
        rows = generated + prompt_curve(rounds=5)
    report.save_bench("graph_customization", rows, notes)
