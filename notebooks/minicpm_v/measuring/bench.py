"""What MiniCPM-V and its peers take: `python -m notebooks.minicpm_v.measuring.bench`.

The notebook measures `live`, the tiny model. The rest takes an hour and comes from the file that this module writes,
results/bench/minicpm_v.json: the same at the size of the released MiniCPM-V 2.0, with weights drawn from a seed, which
are converted as the released ones would be. Every runtime has a process of its own there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import numpy as np
import psutil
import torch
from PIL import Image
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from notebooks.minicpm_v import convert
from notebooks.minicpm_v.measuring.random_checkpoint import RELEASED, seeded_checkpoint
from notebooks.minicpm_v.network import MiniCPMV, load
from notebooks.minicpm_v.pipeline import VisionChat, slicing
from utils import bench, paths, preflight, report, weights
from utils.models import parts

SPEED_ONLY = "released size of 2.0, random weights, speed only"
PROMPT, QUESTION, ANSWER = 512, 32, 32  # tokens: of a long prompt, of a question about a picture, generated
ROOM = PROMPT + 4 * ANSWER  # tokens of a static cache: as far as generating ever goes between two prompts
EAGER, STATIC, OURS = "torch eager", "torch eager, static cache", "openvino"
TYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}
Key = tuple[str, str]  # runtime, precision


class Work(NamedTuple):
    """What a call does. step: "encode" slices, "read" them and a prompt of so many tokens, or "generate" tokens."""

    name: str
    step: str
    slices: int = 0
    tokens: int = 0


Run = Callable[[Work], object]


def works(config: Mapping) -> list[Work]:
    """What is timed, in this order, so that the long prompt is in the cache when generating begins."""
    slices = config | config.get("slice_config", {})
    side, most = slices["scale_resolution"], slices["max_slice_nums"] + 1
    return [
        Work(f"encode a slice of {side} x {side}", "encode", 1),
        Work(f"encode {most} slices of {side} x {side}", "encode", most),
        Work(f"first token, one slice and {QUESTION} tokens", "read", 1, QUESTION),
        Work(f"first token, {PROMPT} tokens", "read", 0, PROMPT),
        Work(f"generate {ANSWER} tokens after {PROMPT}", "generate", 0, ANSWER),
    ]


def pieces(count: int, config: Mapping) -> list[Image.Image]:
    """So many square slices of noise."""
    side = (config | config.get("slice_config", {}))["scale_resolution"]
    noise = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    return [Image.fromarray(pixels) for pixels in noise]


def prompt(count: int, config: Mapping) -> np.ndarray:
    """So many token ids, [1, count]."""
    return np.random.default_rng(1).integers(0, config["vocab_size"], (1, count))


class Eager:
    """PyTorch as it is, on all cores; the cache grows with every token, or (static) has a fixed length.

    A call returns what it computed: embeddings [slices, queries, hidden], or token ids.
    """

    def __init__(self, model: MiniCPMV, static: bool = False) -> None:
        self.model, self.static = model, static
        self._cache: Cache | None = None
        self._token = torch.zeros(1, 1, dtype=torch.int64)

    @torch.inference_mode()
    def __call__(self, work: Work) -> np.ndarray:
        if work.step == "encode":
            return self._encode(work.slices).float().numpy()
        if work.step == "generate":
            return np.array([self._read(self._embed(self._token)) for _ in range(work.tokens)])
        given = [self._encode(work.slices).flatten(0, 1)[None]] if work.slices else []
        given.append(self._embed(torch.from_numpy(prompt(work.tokens, self.model.config))))
        config = self.model.llm.config
        self._cache = StaticCache(config, max_cache_len=ROOM) if self.static else DynamicCache(config=config)
        return np.array([self._read(torch.cat(given, 1))])

    def _encode(self, slices: int) -> torch.Tensor:
        model, dtype = self.model, self.model.resampler.proj.dtype
        given = pieces(slices, model.config)
        if model.version == 2.0:
            return model.encode_equal(torch.from_numpy(np.stack([slicing.normalised(x) for x in given])).to(dtype))
        given = slicing.batch(given, model.vpm.config.image_size // model.vpm.config.patch_size)
        arrays = given.pixel_values, given.patch_attention_mask, given.position_ids, given.sizes
        pixels, *others = map(torch.from_numpy, arrays)
        return model.encode_images(pixels.to(dtype), *others)

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model.llm.get_input_embeddings()(ids)

    def _read(self, embeddings: torch.Tensor) -> int:
        output = self.model.llm(inputs_embeds=embeddings, past_key_values=self._cache, logits_to_keep=1)
        self._token = output.logits[:, -1].argmax(-1, keepdim=True)
        return int(self._token)


class OpenVINO:
    """The steps of a `VisionChat` one by one, called like `Eager`."""

    def __init__(self, folder: Path, **properties: str) -> None:
        self.chat = VisionChat(folder, **properties)
        self._token = 0

    def __call__(self, work: Work) -> np.ndarray:
        chat = self.chat
        if work.step == "encode":
            embeddings = self._encode(work.slices)
            return embeddings.reshape(work.slices, -1, embeddings.shape[-1])
        if work.step == "generate":
            return np.array([self._read(chat._embeddings([self._token])) for _ in range(work.tokens)])
        given = [self._encode(work.slices)[None]] if work.slices else []
        given.append(chat._embeddings(prompt(work.tokens, chat.config)[0].tolist()))
        chat._language.reset_state()
        chat._past = 0
        return np.array([self._read(np.concatenate(given, 1))])

    def _encode(self, slices: int) -> np.ndarray:
        given = pieces(slices, self.chat.config)
        return self.chat._encode_any(given) if self.chat.version >= 2.6 else self.chat._encode_equal(given)

    def _read(self, embeddings: np.ndarray) -> int:
        self._token = int(self.chat._read(embeddings).argmax())
        return self._token


def eager(checkpoint: Path, precision: str) -> dict[Key, Run]:
    """PyTorch with both kinds of cache on one network, weights and arithmetic at "FP32" or "BF16"."""
    model = load(checkpoint, dtype=TYPES[precision])
    return {(EAGER, precision): Eager(model), (STATIC, precision): Eager(model, static=True)}


def openvino(folder: Path, precision: str) -> dict[Key, Run]:
    """The pipeline on an IR folder."""
    return {(OURS, bench.arithmetic(precision)): OpenVINO(folder)}


def once(make: Callable[..., dict[Key, Run]], folder: Path, precision: str, todo: list[Work]) -> None:
    """What a fresh process does to have its memory measured."""
    for run in make(folder, precision).values():
        for work in todo:
            run(work)


def time_all(runs: Mapping[Key, Run], todo: list[Work], rounds: int, label: str | None = None) -> list[dict]:
    """Speed rows of every runtime and work, all in turns.

    The ratio is to the fastest PyTorch on the same work, at whatever precision that is.
    """
    calls = {
        (key, work): partial(run, work)
        for key, run in runs.items()
        for work in todo
        if not (key[0] == STATIC and work.step == "encode")  # no cache is in that
    }
    timings = bench.interleave(calls, rounds)
    rows = []
    for work in todo:
        found = {key: timing for (key, its), timing in timings.items() if its == work}
        peers = [timing for (runtime, _), timing in found.items() if runtime != OURS]
        torch_timing = min(peers, key=lambda timing: timing.median_ms)
        amount = {"encode": work.slices, "read": 1, "generate": work.tokens}[work.step]
        unit = {"encode": "slices/s", "read": "prompts/s", "generate": "tokens/s"}[work.step]
        for (runtime, precision), timing in found.items():
            options = {"amount": amount, "unit": unit, "torch": torch_timing, "label": label}
            rows.append(bench.row(runtime, precision, work.name, timing, **options))
            print(f"{runtime} {precision}, {work.name}: {timing.median_ms:.1f} ms", flush=True)
    return rows


class Watch:
    """`with Watch() as watch`: how long the block takes, and how much memory the children made in it take.

    After the block: `seconds`, and `peak_mb`, the most that all of them together held, looked at every 20 ms.
    """

    def __enter__(self) -> Watch:
        self.peak_mb, self._done = 0.0, threading.Event()
        self._others = set(psutil.Process().children(recursive=True))
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self._begin = perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = perf_counter() - self._begin
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        own = psutil.Process()
        program = own.cmdline()
        while not self._done.wait(0.02):
            held = sum(_rss(child, program) for child in set(own.children(recursive=True)) - self._others)
            self.peak_mb = max(self.peak_mb, held / 1e6)


def _rss(process: psutil.Process, maker: list[str]) -> int:
    """Bytes that a process holds; none while it is being made, when it shows its maker's memory as its own."""
    try:
        return process.memory_info().rss if process.cmdline() != maker else 0
    except psutil.Error:  # it has just ended
        return 0


class Apart:
    """Runtimes in a process of their own, which `make(*args)` makes there: {key: runtime}.

    Raises concurrent.futures.process.BrokenProcessPool where the process dies.
    """

    def __init__(self, make: Callable, *args) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _make, (make, args))
        self.keys: list[Key] = self._pool.submit(_keys).result()

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def runs(self) -> dict[Key, Run]:
        return {key: partial(self._call, key) for key in self.keys}

    def _call(self, key: Key, work: Work) -> None:
        self._pool.submit(_call, key, work).result()


_made: dict[Key, Run] = {}  # of the process behind an Apart


def _make(make: Callable, args: tuple) -> None:
    _made.update(make(*args))


def _keys() -> list[Key]:
    return list(_made)


def _call(key: Key, work: Work) -> None:
    _made[key](work)


def converted(
    checkpoint: Path, folder: Path, precisions: tuple[str, ...], group_size: int, label: str | None = None
) -> tuple[dict[str, Path], list[dict]]:
    """IR folders of a checkpoint by precision, made now below `folder`, and a speed row of each conversion.

    precisions: of parts.PRECISIONS, "FP16" first: the others are made from it. The memory is that of the process
    which converts; files mapped into memory count as far as they were read.
    """
    folders = {precision: folder / precision for precision in precisions}
    rows = []
    for precision, made in folders.items():
        base = (convert.to_ir, checkpoint, made)
        compression = (convert.compress, folders["FP16"], precision, group_size, made)
        with Watch() as watch:
            preflight.in_child(*(base if precision == "FP16" else compression), what=f"Making {precision}")
        sizes = {"peak_rss_mb": watch.peak_mb, "model_mb": bench.size_mb(made), "label": label}
        name = "conversion of the checkpoint" if precision == "FP16" else "compression of the FP16 IR"
        timing = bench.Timing.of([1e3 * watch.seconds])
        rows.append(bench.row(OURS, precision, name, timing, **sizes) | {"throughput": None, "unit": None})
        print(f"{name}, {precision}: {watch.seconds:.0f} s, up to {watch.peak_mb:.0f} MB", flush=True)
    return folders, rows


def measured(
    checkpoint: Path, folders: Mapping[str, Path], peers: tuple[str, ...], rounds: int, label: str | None = None
) -> list[dict]:
    """Speed rows of PyTorch at the precisions `peers` and of the IR folders, each in a process of its own, with the
    memory that such a process takes, and the size of its weights."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    todo = works(config)
    making = [(eager, checkpoint, precision) for precision in peers]
    making += [(openvino, folder, precision) for precision, folder in folders.items()]
    runs: dict[Key, Run] = {}
    memory: dict[Key, dict] = {}
    with ExitStack() as stack:
        for make, folder, precision in making:
            peak = bench.peak_rss_mb(once, make, folder, precision, todo)
            print(f"{make.__name__} {precision}: up to {peak:.0f} MB", flush=True)
            apart = stack.enter_context(Apart(make, folder, precision))
            runs |= apart.runs()
            memory |= dict.fromkeys(apart.keys, {"peak_rss_mb": peak, "model_mb": _weights_mb(folder)})
        rows = time_all(runs, todo, rounds, label)
    return [row | memory[row["runtime"], row["precision"]] for row in rows]


def _weights_mb(folder: Path) -> float:
    """Size of a checkpoint's or an IR folder's weights."""
    return sum(bench.size_mb(file) for pattern in ("*.safetensors", "*_model.bin") for file in folder.glob(pattern))


def limits(rows: list[dict], folders: Mapping[str, Path], config: Mapping, what: str) -> dict[str, float]:
    """How far OpenVINO is from what the machine can do, measured now.

    Generating reads every weight of the language model for each token; reading a prompt multiplies with it for each
    token (two operations a weight of its layers).
    """
    bandwidth, product = bench.read_bandwidth_gbs(), bench.matmul_gflops("bf16")
    notes = {"read bandwidth, GB/s": round(bandwidth, 1), "largest bf16 matrix product, GFLOP/s": round(product)}
    ours = {(row["precision"], row["workload"]): row for row in rows if row["runtime"] == OURS}
    *_, reading, generating = works(config)
    for precision, folder in folders.items():
        named = bench.arithmetic(precision)
        size = bench.size_mb(folder / convert.xml("language")) / 1e3
        share = size * ours[named, generating.name]["throughput"] / bandwidth
        notes[f"{what}, generating at {named}, share of the read bandwidth"] = round(share, 2)
        seconds = ours[named, reading.name]["median_ms"] / 1e3
        share = 2e-9 * layer_weights(config) * reading.tokens / seconds / product
        notes[f"{what}, reading a prompt at {named}, share of that product"] = round(share, 2)
    return notes


def layer_weights(config: Mapping) -> int:
    """Weights of the matrices in the language model's layers."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv = hidden * config.get("num_key_value_heads", heads) // heads
    return config["num_hidden_layers"] * (2 * hidden * (hidden + kv) + 3 * hidden * config["intermediate_size"])


def live(precisions: tuple[str, ...] = parts.PRECISIONS, rounds: int = 5) -> list[dict]:
    """What the notebook measures: the tiny model, all in this process."""
    checkpoint = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    runs = {}
    for precision in bench.torch_precisions():
        runs |= eager(checkpoint, precision)
    for precision in precisions:
        runs |= openvino(convert.prepare("tiny", precision), precision)
    return time_all(runs, works(runs[EAGER, "FP32"].model.config), rounds)


def main() -> None:
    tiny = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    place = paths.models_dir()
    preflight.check(ram_gb=20, disk_gb=20, what="The benchmark at the released size")
    place.mkdir(parents=True, exist_ok=True)
    rows, notes = [], {"left out": "llama.cpp: there is no GGUF file of these weights"}
    with bench.exclusive() as load, TemporaryDirectory(dir=place) as scratch:
        large = seeded_checkpoint(RELEASED, tiny, Path(scratch) / "checkpoint")
        for checkpoint, what, model, precisions, peers, rounds, label in (
            (tiny, "tiny", "tiny", parts.PRECISIONS, bench.torch_precisions(), 7, None),
            (large, "released size", "released", ("FP16", "INT4"), (bench.torch_precision(),), 3, SPEED_ONLY),
        ):
            group_size = convert.MODELS[model]["group_size"]
            folders, conversions = converted(checkpoint, Path(scratch) / model, precisions, group_size, label)
            timed = measured(checkpoint, folders, peers, rounds, label)
            config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
            notes |= limits(timed, folders, config, what)
            rows += conversions + timed
    report.save_bench("minicpm_v", rows, notes | load)
