"""Speed and memory of MiniCPM-V and its peers: `python -m notebooks.minicpm_v.measuring.bench`.

The notebook measures `live`, the tiny model. This module takes an hour and writes results/bench/minicpm_v.json: the
same at the size of the released MiniCPM-V 2.0, with random weights that are converted as the released ones would be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from utils.models.llm_speed import layer_weights
from utils.models.random_checkpoint import timed_conversions, weights_mb

SPEED_ONLY = "released size of 2.0, random weights, speed only"
PROMPT_TOKENS = 512  # of a long prompt
QUESTION_TOKENS, ANSWER_TOKENS = 32, 32
STATIC_CACHE_TOKENS = PROMPT_TOKENS + ANSWER_TOKENS
EAGER, STATIC, OURS = "torch eager", "torch eager, static cache", "openvino"
TYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}


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
    read = settings.get("query_num", 64) + QUESTION_TOKENS  # as many as a slice and the question
    return [
        Workload(f"encode a slice of {side} x {side}", "encode", 1),
        Workload(f"encode {most} slices of {side} x {side}", "encode", most),
        Workload(f"first token, one slice and {QUESTION_TOKENS} tokens", "read", 1, QUESTION_TOKENS),
        Workload(f"first token, {read} tokens", "read", 0, read),
        Workload(f"first token, {PROMPT_TOKENS} tokens", "read", 0, PROMPT_TOKENS),
        Workload(f"generate {ANSWER_TOKENS} tokens after {PROMPT_TOKENS}", "generate", 0, ANSWER_TOKENS),
    ]


def stages(config: Mapping) -> tuple[str, dict[str, int]]:
    """The workload of a first token with a slice, and how often each of its stages runs in it."""
    slice_alone, _, whole, reading, *_ = (work.name for work in workloads(config))
    return whole, {slice_alone: 1, reading: 1}


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


def start(runtime: str, folder: Path, precision: str, config_json: str) -> dict[str, Callable[[], object]]:
    """The workloads of a runtime on a checkpoint or an IR folder; "generate" goes on from the long prompt.

    config_json: of the checkpoint.
    """
    if runtime == OURS:
        run: Run = OpenVINO(folder)
    else:
        run = Eager(load(folder, dtype=TYPES[precision]), static=runtime == STATIC)
    works = {work.name: work for work in workloads(json.loads(config_json))}
    *_, long_prompt, _ = works.values()
    calls = {}
    for name, work in works.items():
        call = partial(run, work)
        if runtime != STATIC or work.step != "encode":  # which has no cache
            calls[name] = bench.Prepared(partial(run, long_prompt), call) if work.step == "generate" else call
    return calls


def measure(
    checkpoint: Path, folders: Mapping[str, Path], peers: Sequence[str], rounds: int, label: str | None = None
) -> list[dict]:
    """Speed rows of PyTorch at the precisions `peers`, with both kinds of cache, and of the IR folders.

    With a label, for the released size, they run one after the other: together they take more than 24 GB.
    """
    config_json, settings = (checkpoint / "config.json").read_text(encoding="utf-8"), []
    for precision in peers:
        for runtime in (EAGER, STATIC):
            arguments = (runtime, checkpoint, precision, config_json)
            settings.append(bench.Setting(runtime, precision, start, arguments, weights_mb(checkpoint)))
    for precision, folder in folders.items():
        arguments = (OURS, folder, precision, config_json)
        settings.append(bench.Setting(OURS, bench.arithmetic(precision), start, arguments, weights_mb(folder)))
    amounts = {"encode": ("slices", "slices/s"), "read": (None, "prompts/s"), "generate": ("tokens", "tokens/s")}
    timed = []
    for work in workloads(json.loads(config_json)):
        field, unit = amounts[work.step]
        timed.append(bench.Workload(work.name, getattr(work, field) if field else 1, unit))
    return bench.compare(settings, timed, rounds, label=label, together=label is None)


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


@bench.live
def live(precisions: tuple[str, ...] = parts.PRECISIONS, rounds: int = 5) -> list[dict]:
    """What the notebook measures: the tiny model."""
    checkpoint = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    folders = {precision: convert.prepare("tiny", precision) for precision in precisions}
    return measure(checkpoint, folders, bench.torch_precisions(), rounds)


def main() -> None:
    tiny = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    models = paths.models_dir()
    preflight.check(ram_gb=20, disk_gb=20, what="The benchmark at the released size")
    models.mkdir(parents=True, exist_ok=True)
    rows, notes, explained = [], {"left out": "llama.cpp: there is no GGUF file of these weights"}, []
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
            measured = measure(checkpoint, folders, peers, rounds, label)
            config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
            notes |= limits(measured, folders, config, what) | bench.stage_shares(measured, *stages(config), what)
            explained.append((measured, *stages(config)))
            rows += conversions + measured
    report.save_bench("minicpm_v", rows, notes | load)
    for measured in explained:
        bench.explain(*measured)
