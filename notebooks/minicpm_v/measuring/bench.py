"""Speed and memory of MiniCPM-V and its peers: `python -m notebooks.minicpm_v.measuring.bench`.

The notebook measures `live`, the tiny model. This module takes an hour and writes results/bench/minicpm_v.json: the
same at the size of the released MiniCPM-V 2.0, with random weights that are converted as the released ones would be.
Every runtime has a process of its own there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from notebooks.minicpm_v import convert
from notebooks.minicpm_v.measuring.random_checkpoint import RELEASED, seeded_checkpoint
from notebooks.minicpm_v.network import MiniCPMV, load
from notebooks.minicpm_v.pipeline import VisionChat, slicing
from utils import bench, paths, preflight, report, weights
from utils.models import parts
from utils.models.random_checkpoint import timed_conversions, weights_mb

SPEED_ONLY = "released size of 2.0, random weights, speed only"
PROMPT_TOKENS = 512  # of a long prompt
QUESTION_TOKENS, ANSWER_TOKENS = 32, 32
STATIC_CACHE_TOKENS = PROMPT_TOKENS + 4 * ANSWER_TOKENS  # the most between two prompts
EAGER, STATIC, OURS = "torch eager", "torch eager, static cache", "openvino"
TYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}
Key = tuple[str, str]  # runtime, precision


class Workload(NamedTuple):
    """What a call does. step: "encode" slices, "read" them and a prompt of `tokens`, or "generate" `tokens`."""

    name: str
    step: str
    slices: int = 0
    tokens: int = 0


Run = Callable[[Workload], object]


def workloads(config: Mapping) -> list[Workload]:
    """What is timed, in this order: "generate" continues from the long prompt."""
    settings = config | config.get("slice_config", {})
    side, most = settings["scale_resolution"], settings["max_slice_nums"] + 1
    return [
        Workload(f"encode a slice of {side} x {side}", "encode", 1),
        Workload(f"encode {most} slices of {side} x {side}", "encode", most),
        Workload(f"first token, one slice and {QUESTION_TOKENS} tokens", "read", 1, QUESTION_TOKENS),
        Workload(f"first token, {PROMPT_TOKENS} tokens", "read", 0, PROMPT_TOKENS),
        Workload(f"generate {ANSWER_TOKENS} tokens after {PROMPT_TOKENS}", "generate", 0, ANSWER_TOKENS),
    ]


def noise_slices(count: int, config: Mapping) -> list[Image.Image]:
    """`count` square slices of noise."""
    side = (config | config.get("slice_config", {}))["scale_resolution"]
    noise = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    return [Image.fromarray(pixels) for pixels in noise]


def prompt(count: int, config: Mapping) -> np.ndarray:
    """[1, count]: token ids."""
    return np.random.default_rng(1).integers(0, config["vocab_size"], (1, count))


class Eager:
    """PyTorch eager, on all cores. The cache grows with every token, or has a fixed length (static).

    A call returns what it computed: embeddings [slices, queries, hidden], or token ids.
    """

    def __init__(self, model: MiniCPMV, static: bool = False) -> None:
        self.model = model
        self.static = static
        self._cache: Cache | None = None
        self._token = torch.zeros(1, 1, dtype=torch.int64)  # the last one

    @torch.inference_mode()
    def __call__(self, work: Workload) -> np.ndarray:
        if work.step == "encode":
            return self._encode(work.slices).float().numpy()
        if work.step == "generate":
            return np.array([self._next_token(self._embed(self._token)) for _ in range(work.tokens)])
        embeddings = [self._encode(work.slices).flatten(0, 1)[None]] if work.slices else []  # [1, slices * queries, D]
        embeddings.append(self._embed(torch.from_numpy(prompt(work.tokens, self.model.config))))  # [1, tokens, D]
        config = self.model.llm.config
        self._cache = (
            StaticCache(config, max_cache_len=STATIC_CACHE_TOKENS) if self.static else DynamicCache(config=config)
        )
        return np.array([self._next_token(torch.cat(embeddings, 1))])

    def _encode(self, count: int) -> torch.Tensor:
        """[count, queries, D]"""
        model, dtype = self.model, self.model.resampler.proj.dtype
        slices = noise_slices(count, model.config)
        if model.version == 2.0:
            pixels = torch.from_numpy(np.stack([slicing.normalise(x) for x in slices]))  # [count, 3, H, W]
            return model.encode_equal(pixels.to(dtype))
        inputs = slicing.batch(slices, model.vpm.config.image_size // model.vpm.config.patch_size)
        arrays = inputs.pixel_values, inputs.patch_attention_mask, inputs.position_ids, inputs.sizes
        pixels, *others = map(torch.from_numpy, arrays)
        return model.encode_images(pixels.to(dtype), *others)

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model.llm.get_input_embeddings()(ids)

    def _next_token(self, embeddings: torch.Tensor) -> int:
        output = self.model.llm(inputs_embeds=embeddings, past_key_values=self._cache, logits_to_keep=1)
        self._token = output.logits[:, -1].argmax(-1, keepdim=True)
        return int(self._token)


class OpenVINO:
    """The single steps of a `VisionChat`, called like `Eager`."""

    def __init__(self, folder: Path, **properties: str) -> None:
        self.chat = VisionChat(folder, **properties)
        self._token = 0  # the last one

    def __call__(self, work: Workload) -> np.ndarray:
        chat = self.chat
        if work.step == "encode":
            embeddings = self._encode(work.slices)  # [slices * queries, D]
            return embeddings.reshape(work.slices, -1, embeddings.shape[-1])
        if work.step == "generate":
            return np.array([self._next_token(chat.embed([self._token])) for _ in range(work.tokens)])
        embeddings = [self._encode(work.slices)[None]] if work.slices else []
        embeddings.append(chat.embed(prompt(work.tokens, chat.config)[0].tolist()))
        chat.reset_cache()
        return np.array([self._next_token(np.concatenate(embeddings, 1))])

    def _encode(self, count: int) -> np.ndarray:
        return self.chat.encode_slices(noise_slices(count, self.chat.config))

    def _next_token(self, embeddings: np.ndarray) -> int:
        self._token = int(self.chat.read(embeddings).argmax())
        return self._token


def eager(checkpoint: Path, precision: str) -> dict[Key, Run]:
    """PyTorch with both kinds of cache on one network, with weights and arithmetic in "FP32" or "BF16"."""
    model = load(checkpoint, dtype=TYPES[precision])
    return {(EAGER, precision): Eager(model), (STATIC, precision): Eager(model, static=True)}


def openvino(folder: Path, precision: str) -> dict[Key, Run]:
    """The pipeline on an IR folder."""
    return {(OURS, bench.arithmetic(precision)): OpenVINO(folder)}


def run_once(make: Callable[..., dict[Key, Run]], folder: Path, precision: str, workload_list: list[Workload]) -> None:
    """Run every workload once: a fresh process does this to have its memory measured."""
    for run in make(folder, precision).values():
        for work in workload_list:
            run(work)


def time_all(
    runs: Mapping[Key, Run], workload_list: list[Workload], rounds: int, label: str | None = None
) -> list[dict]:
    """Speed rows of every runtime and workload, all timed alternately.

    The ratio is to the fastest PyTorch on the same workload, at any precision.
    """
    calls = {
        (key, work): partial(run, work)
        for key, run in runs.items()
        for work in workload_list
        if not (key[0] == STATIC and work.step == "encode")  # which has no cache
    }
    timings = bench.interleave(calls, rounds)
    rows = []
    for work in workload_list:
        of_work = {key: timing for (key, timed), timing in timings.items() if timed == work}
        peers = [timing for (runtime, _), timing in of_work.items() if runtime != OURS]
        torch_timing = min(peers, key=lambda timing: timing.median_ms)
        amount = {"encode": work.slices, "read": 1, "generate": work.tokens}[work.step]
        unit = {"encode": "slices/s", "read": "prompts/s", "generate": "tokens/s"}[work.step]
        for (runtime, precision), timing in of_work.items():
            options = {"amount": amount, "unit": unit, "torch": torch_timing, "label": label}
            rows.append(bench.row(runtime, precision, work.name, timing, **options))
    return rows


class RuntimeProcess:
    """Runtimes in a process of their own: those of the dict {key: runtime} that `make(*args)` returns there.

    Raises concurrent.futures.process.BrokenProcessPool where the process dies.
    """

    def __init__(self, make: Callable, *args) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _make, (make, args))
        self.keys: list[Key] = self._pool.submit(_keys).result()

    def __enter__(self) -> RuntimeProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def runs(self) -> dict[Key, Run]:
        return {key: partial(self._call, key) for key in self.keys}

    def _call(self, key: Key, work: Workload) -> None:
        self._pool.submit(_call, key, work).result()


_runtimes: dict[Key, Run] = {}  # of the process behind a RuntimeProcess


def _make(make: Callable, args: tuple) -> None:
    _runtimes.update(make(*args))


def _keys() -> list[Key]:
    return list(_runtimes)


def _call(key: Key, work: Workload) -> None:
    _runtimes[key](work)


def measure(
    checkpoint: Path, folders: Mapping[str, Path], peers: tuple[str, ...], rounds: int, label: str | None = None
) -> list[dict]:
    """Speed rows of PyTorch at the precisions `peers` and of the IR folders, each in a process of its own.

    They have the memory of such a process and the size of its weights.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    workload_list = workloads(config)
    factories = [(eager, checkpoint, precision) for precision in peers]
    factories += [(openvino, folder, precision) for precision, folder in folders.items()]
    runs: dict[Key, Run] = {}
    memory: dict[Key, dict] = {}
    with ExitStack() as stack:
        for make, folder, precision in factories:
            peak = bench.peak_rss_mb(run_once, make, folder, precision, workload_list)
            print(f"{make.__name__} {precision}: up to {peak:.0f} MB", flush=True)
            process = stack.enter_context(RuntimeProcess(make, folder, precision))
            runs |= process.runs()
            memory |= dict.fromkeys(process.keys, {"peak_rss_mb": peak, "model_mb": weights_mb(folder)})
        rows = time_all(runs, workload_list, rounds, label)
    for row in rows:
        print(f"{row['runtime']} {row['precision']}, {row['workload']}: {row['median_ms']:.1f} ms", flush=True)
    return [row | memory[row["runtime"], row["precision"]] for row in rows]


def limits(rows: list[dict], folders: Mapping[str, Path], config: Mapping, what: str) -> dict[str, float]:
    """OpenVINO's share of the machine's read bandwidth and arithmetic, which are measured now.

    To generate a token, every weight of the language model is read. To read a token of a prompt, every weight of its
    layers takes two operations.
    """
    bandwidth, product = bench.read_bandwidth_gbs(), bench.matmul_gflops("bf16")
    notes = {"read bandwidth, GB/s": round(bandwidth, 1), "largest bf16 matrix product, GFLOP/s": round(product)}
    ours = {(row["precision"], row["workload"]): row for row in rows if row["runtime"] == OURS}
    *_, reading, generating = workloads(config)
    for precision, folder in folders.items():
        name = bench.arithmetic(precision)
        size = bench.size_mb(folder / convert.xml("language")) / 1e3
        share = size * ours[name, generating.name]["throughput"] / bandwidth
        notes[f"{what}, generating at {name}, share of the read bandwidth"] = round(share, 2)
        seconds = ours[name, reading.name]["median_ms"] / 1e3
        share = 2e-9 * layer_weights(config) * reading.tokens / seconds / product
        notes[f"{what}, reading a prompt at {name}, share of that product"] = round(share, 2)
    return notes


def layer_weights(config: Mapping) -> int:
    """Weights of the matrices in the language model's layers."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv = hidden * config.get("num_key_value_heads", heads) // heads
    return config["num_hidden_layers"] * (2 * hidden * (hidden + kv) + 3 * hidden * config["intermediate_size"])


@bench.live
def live(precisions: tuple[str, ...] = parts.PRECISIONS, rounds: int = 5) -> list[dict]:
    """What the notebook measures: the tiny model, all in this process."""
    checkpoint = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    runs = {}
    for precision in bench.torch_precisions():
        runs |= eager(checkpoint, precision)
    for precision in precisions:
        runs |= openvino(convert.prepare("tiny", precision), precision)
    return time_all(runs, workloads(runs[EAGER, "FP32"].model.config), rounds)


def main() -> None:
    tiny = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    models = paths.models_dir()
    preflight.check(ram_gb=20, disk_gb=20, what="The benchmark at the released size")
    models.mkdir(parents=True, exist_ok=True)
    rows, notes = [], {"left out": "llama.cpp: there is no GGUF file of these weights"}
    with bench.exclusive() as load, TemporaryDirectory(dir=models) as scratch:
        large = seeded_checkpoint(RELEASED, tiny, Path(scratch) / "checkpoint")
        for checkpoint, what, model, precisions, peers, rounds, label in (
            (tiny, "tiny", "tiny", parts.PRECISIONS, bench.torch_precisions(), 7, None),
            (large, "released size", "released", ("FP16", "INT4"), (bench.torch_precision(),), 3, SPEED_ONLY),
        ):
            group_size = convert.MODELS[model]["group_size"]
            folders, conversions = timed_conversions(
                convert.to_ir, convert.compress, checkpoint, Path(scratch) / model, precisions, group_size, label
            )
            timed = measure(checkpoint, folders, peers, rounds, label)
            config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
            notes |= limits(timed, folders, config, what)
            rows += conversions + timed
    report.save_bench("minicpm_v", rows, notes | load)
