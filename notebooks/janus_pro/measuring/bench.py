"""What Janus-Pro and its peers take: `python -m notebooks.janus_pro.measuring.bench`.

The notebook measures `live`, the tiny model. The rest takes an hour and comes from the file that this module writes,
results/bench/janus_pro.json: the same at the size of the released Janus-Pro-1B, with weights drawn from a seed, which
are converted as the released ones would be. The fast way to draw, guidance in a batch of two and the cache inside
OpenVINO, stands beside the naive one: two requests, and a cache that goes through Python with every token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import numpy as np
import openvino as ov
import torch
from PIL import Image
from transformers import JanusConfig
from transformers.cache_utils import DynamicCache

from notebooks.janus_pro import convert
from notebooks.janus_pro.measuring.random_checkpoint import released, seeded_checkpoint
from notebooks.janus_pro.network import configuration, load
from notebooks.janus_pro.pipeline import Figures, Janus, normalised
from utils import bench, paths, preflight, report, weights
from utils.models import parts

SPEED_ONLY = "released size of 1B, random weights, speed only"
QUESTION, ANSWER, PART = 32, 32, 24  # tokens: of a question or prompt, of an answer, of a drawing that is not finished
GUIDANCE = 5.0
EAGER, OURS, NAIVE = "torch eager", "openvino", "openvino, naive"
TYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}
UNITS = {"see": "pictures/s", "read": "prompts/s", "answer": "tokens/s", "draw": "tokens/s", "paint": "pictures/s"}
Key = tuple[str, str]  # runtime, precision


class Work(NamedTuple):
    """What a call does. step: of UNITS; tokens: how many it makes, or reads beside a picture."""

    name: str
    step: str
    tokens: int = 0


Run = Callable[[Work], np.ndarray]


def works(config: JanusConfig) -> list[Work]:
    """What is timed, in this order: answering goes on from what was read last."""
    side = config.vision_config.image_size
    return [
        Work(f"see a picture of {side} x {side}", "see"),
        Work(f"first token, a picture and {QUESTION} tokens", "read", QUESTION),
        Work(f"answer with {ANSWER} tokens after them", "answer", ANSWER),
        Work(f"draw the first {PART} tokens", "draw", PART),
        Work("make a picture of its tokens", "paint"),
    ]


def whole(config: JanusConfig) -> Work:
    """A drawing from its first token to its last one."""
    count = config.vq_config.num_patches**2
    return Work(f"draw all {count} tokens", "draw", count)


def picture(side: int) -> Image.Image:
    """A picture of noise."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


def prompt(vocabulary: int) -> list[int]:
    """QUESTION token ids."""
    return np.random.default_rng(1).integers(0, vocabulary, QUESTION).tolist()


def codes(config: JanusConfig) -> np.ndarray:
    """[1, t]: the tokens of a drawing."""
    shape = 1, config.vq_config.num_patches**2
    return np.random.default_rng(2).integers(0, config.vq_config.num_embeddings, shape)


class Eager:
    """PyTorch as it is, on all cores. Greedy, so that all runtimes make the same tokens.

    A call returns what it computed: embeddings [1, T, D], token ids [k], or pixels [1, 3, S, S].
    """

    def __init__(self, checkpoint: Path, precision: str) -> None:
        self.model = load(checkpoint, dtype=TYPES[precision])
        self._cache, self._token = None, 0

    @torch.inference_mode()
    def __call__(self, work: Work) -> np.ndarray:
        model, config = self.model, self.model.config
        if work.step == "see":
            return self._see().float().numpy()
        if work.step == "paint":
            return model.model.vqmodel.decode(torch.from_numpy(codes(config))).float().numpy()
        if work.step == "draw":
            return self._draw(work.tokens)
        if work.step == "read":
            self._forget()
            words = self._embed([prompt(config.text_config.vocab_size)])
            return np.array([self._say(torch.cat([self._see(), words], 1))])
        return np.array([self._say(self._embed([[self._token]])) for _ in range(work.tokens)])

    def _see(self) -> torch.Tensor:
        side = self.model.config.vision_config.image_size
        pixels = torch.from_numpy(normalised(picture(side), side)).to(self.model.dtype)
        return self.model.model.aligner(self.model.model.vision_model(pixels).last_hidden_state)

    def _forget(self) -> None:
        self._cache = DynamicCache(config=self.model.config.text_config)

    def _embed(self, rows: list[list[int]]) -> torch.Tensor:
        return self.model.get_input_embeddings()(torch.tensor(rows))

    def _read(self, embeddings: torch.Tensor) -> torch.Tensor:
        network = self.model.model.language_model
        return network(inputs_embeds=embeddings, past_key_values=self._cache).last_hidden_state[:, -1]

    def _say(self, embeddings: torch.Tensor) -> int:
        self._token = int(self.model.lm_head(self._read(embeddings)).argmax())
        return self._token

    def _draw(self, count: int) -> np.ndarray:
        self._forget()
        ids = prompt(self.model.config.text_config.vocab_size)
        embeddings, tokens = self._embed([ids, unprompted(ids)]), []
        while len(tokens) < count:
            conditional, unconditional = self.model.model.generation_head(self._read(embeddings)).float()
            tokens.append((unconditional + GUIDANCE * (conditional - unconditional)).argmax())
            embeddings = self.model.prepare_embeddings_for_image_generation(tokens[-1].repeat(2, 1))
        return torch.stack(tokens).numpy()


def unprompted(ids: list[int]) -> list[int]:
    """As many tokens, of which only the ends are those of a prompt."""
    return [ids[0], *[0] * (len(ids) - 2), ids[-1]]


class OpenVINO:
    """The steps of a `Janus` one by one, called like `Eager`."""

    def __init__(self, folder: Path, config: JanusConfig, **properties: str) -> None:
        self.janus, self.config = Janus(folder, **properties), config
        self._token = 0

    def __call__(self, work: Work) -> np.ndarray:
        janus = self.janus
        if work.step == "see":
            return janus._see(picture(janus.image_size))
        if work.step == "paint":
            request = janus._run["image_decoder"]
            request.infer({"tokens": codes(self.config)})
            return request.get_output_tensor(0).data.copy()
        if work.step == "draw":
            return self._draw(work.tokens)
        if work.step == "read":
            janus._forget()
            words = janus._embed(prompt(self.config.text_config.vocab_size))
            return np.array([self._say(np.concatenate([janus._see(picture(janus.image_size)), words], 1))])
        return np.array([self._say(janus._embed([self._token])) for _ in range(work.tokens)])

    def _say(self, embeddings: np.ndarray) -> int:
        request = self.janus._run["text_head"]
        request.infer({"hidden": self.janus._read(embeddings)[:, -1]})
        self._token = int(request.get_output_tensor(0).data.argmax())
        return self._token

    def _draw(self, count: int) -> np.ndarray:
        ids, drawn = prompt(self.config.text_config.vocab_size), []

        def look(tokens: np.ndarray) -> None:
            drawn[:] = tokens[0]
            if len(drawn) == count:
                raise Enough

        padding, self.janus._ids["padding"] = self.janus._ids["padding"], 0
        try:
            self.janus._draw(ids, 1, 0, GUIDANCE, 0.0, look, Figures())
        except Enough:
            pass
        finally:
            self.janus._ids["padding"] = padding
        return np.array(drawn)


class Enough(Exception):
    """As many tokens are drawn as were to be."""


class Naive:
    """Drawing without the three things that make it fast: for guidance two requests take turns, the cache is copied
    out to Python and in again with every token, and so are the logits."""

    def __init__(self, folder: Path, config: JanusConfig, **properties: str) -> None:
        core, self.config = ov.Core(), config

        def compiled(part: str) -> ov.CompiledModel:
            return core.compile_model(core.read_model(folder / convert.xml(part)), "CPU", properties)

        language = compiled("language")
        self._language = [language.create_infer_request() for _ in range(2)]
        parts = "text_embeddings", "image_head", "generation_embeddings"
        self._run = {part: compiled(part).create_infer_request() for part in parts}

    def __call__(self, work: Work) -> np.ndarray:
        ids, tokens = prompt(self.config.text_config.vocab_size), []
        read = [self._infer("text_embeddings", {"input": np.int64([row])}) for row in (ids, unprompted(ids))]
        for request in self._language:
            request.reset_state()
        caches: list[list[np.ndarray]] = [[], []]
        past = 0
        while len(tokens) < work.tokens:
            total = past + read[0].shape[1]
            rows = zip(self._language, caches, read, strict=True)
            hidden = [self._read(request, cache, x, past, total) for request, cache, x in rows]
            conditional, unconditional = (self._infer("image_head", {"hidden": x}) for x in hidden)
            tokens.append(int((unconditional + GUIDANCE * (conditional - unconditional)).argmax()))
            read, past = [self._infer("generation_embeddings", {"input": np.int64([[tokens[-1]]])})] * 2, total
        return np.array(tokens)

    def _infer(self, part: str, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        self._run[part].infer(inputs)
        return self._run[part].get_output_tensor(0).data.copy()

    @staticmethod
    def _read(
        request: ov.InferRequest, cache: list[np.ndarray], embeddings: np.ndarray, past: int, total: int
    ) -> np.ndarray:
        """The last hidden state [1, D]; the cache is put in before and taken out after."""
        for state, kept in zip(request.query_state(), cache, strict=False):
            state.state = ov.Tensor(kept)
        request.infer(
            {
                "inputs_embeds": embeddings,
                "attention_mask": np.ones((1, total), np.int64),
                "position_ids": np.arange(past, total, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        cache[:] = [state.state.data.copy() for state in request.query_state()]
        return request.get_output_tensor(0).data[:, -1].copy()


def eager(checkpoint: Path, config: JanusConfig, precision: str) -> dict[Key, Run]:
    """PyTorch, weights and arithmetic at "FP32" or "BF16"."""
    return {(EAGER, precision): Eager(checkpoint, precision)}


def openvino(folder: Path, config: JanusConfig, precision: str) -> dict[Key, Run]:
    """The pipeline on an IR folder."""
    return {(OURS, bench.arithmetic(precision)): OpenVINO(folder, config)}


def naive(folder: Path, config: JanusConfig, precision: str) -> dict[Key, Run]:
    """The same networks, drawing the naive way."""
    return {(NAIVE, bench.arithmetic(precision)): Naive(folder, config)}


def once(make: Callable[..., dict[Key, Run]], folder: Path, config: dict, precision: str, todo: list[Work]) -> None:
    """What a fresh process does to have its memory measured."""
    for key, run in make(folder, JanusConfig(**config), precision).items():
        for work in todo:
            if able(key, work):
                run(work)


def able(key: Key, work: Work) -> bool:
    """Whether a runtime does this: the naive one only draws."""
    return key[0] != NAIVE or work.step == "draw"


def time_all(
    runs: Mapping[Key, Run], todo: list[Work], rounds: int, label: str | None = None, warmup: int = 1
) -> list[dict]:
    """Speed rows of every runtime and work, all runtimes in turns, after `warmup` turns that do not count.

    The ratio is to the fastest PyTorch on the same work, at whatever precision that is.
    """
    rows = []
    for work in todo:  # one after the other: answers go on from what was read
        calls = {key: partial(run, work) for key, run in runs.items() if able(key, work)}
        found = bench.interleave(calls, rounds, warmup)
        peers = [timing for (runtime, _), timing in found.items() if runtime == EAGER]
        fastest = min(peers, key=lambda timing: timing.median_ms)
        amount = work.tokens if work.step in ("answer", "draw") else 1
        for (runtime, precision), timing in found.items():
            options = {"amount": amount, "unit": UNITS[work.step], "torch": fastest, "label": label}
            rows.append(bench.row(runtime, precision, work.name, timing, **options))
            print(f"{runtime} {precision}, {work.name}: {timing.median_ms:.1f} ms", flush=True)
    return rows


def converted(
    checkpoint: Path, folder: Path, precisions: tuple[str, ...], group_size: int, label: str | None = None
) -> tuple[dict[str, Path], list[dict]]:
    """IR folders of a checkpoint by precision, made now below `folder`, and a speed row of each conversion.

    precisions: of parts.PRECISIONS, "FP16" first: the others are made from it.
    """
    folders = {precision: folder / precision for precision in precisions}
    rows = []
    for precision, made in folders.items():
        base = (convert.to_ir, checkpoint, made)
        compression = (convert.compress, folders["FP16"], precision, group_size, made)
        begin = perf_counter()
        preflight.in_child(*(base if precision == "FP16" else compression), what=f"Making {precision}")
        timing = bench.Timing.of([1e3 * (perf_counter() - begin)])
        name = "conversion of the checkpoint" if precision == "FP16" else "compression of the FP16 IR"
        row = bench.row(OURS, precision, name, timing, model_mb=bench.size_mb(made), label=label)
        rows.append(row | {"throughput": None, "unit": None})
        print(f"{name}, {precision}: {timing.median_ms / 1e3:.0f} s", flush=True)
    return folders, rows


def measured(
    checkpoint: Path, folders: Mapping[str, Path], peers: tuple[str, ...], rounds: int, label: str | None = None
) -> list[dict]:
    """Speed rows of PyTorch at the precisions `peers` and of the IR folders, with the memory that a process which does
    that alone takes, and the size of the weights. A whole drawing is timed once."""
    config = configuration(checkpoint)
    todo = works(config)
    making = [(eager, checkpoint, precision) for precision in peers]
    making += [(make, folder, precision) for precision, folder in folders.items() for make in (openvino, naive)]
    runs: dict[Key, Run] = {}
    memory: dict[Key, dict] = {}
    for make, folder, precision in making:
        peak = bench.peak_rss_mb(once, make, folder, config.to_dict(), precision, todo)
        made = make(folder, config, precision)
        runs |= made
        memory |= dict.fromkeys(made, {"peak_rss_mb": peak, "model_mb": _weights_mb(folder)})
        print(f"{make.__name__} {precision}: up to {peak:.0f} MB", flush=True)
    rows = time_all(runs, todo, rounds, label)
    fast = {key: run for key, run in runs.items() if key[0] != NAIVE}  # its caches would be copied 576 times
    rows += time_all(fast, [whole(config)], 1, label, warmup=0)  # minutes, and warm from its first tokens
    return [row | memory[row["runtime"], row["precision"]] for row in rows]


def _weights_mb(folder: Path) -> float:
    """Size of a checkpoint's or an IR folder's weights."""
    return sum(bench.size_mb(file) for pattern in ("*.safetensors", "*_model.bin") for file in folder.glob(pattern))


def limits(rows: list[dict], folders: Mapping[str, Path], config: JanusConfig, what: str) -> dict[str, float]:
    """How far OpenVINO is from what the machine can do, measured now: every weight of the language model is read for
    each token of an answer, and of a drawing with both of its rows."""
    bandwidth = bench.read_bandwidth_gbs()
    notes = {"read bandwidth, GB/s": round(bandwidth, 1)}
    ours = {(row["precision"], row["workload"]): row for row in rows if row["runtime"] == OURS}
    names = {work.step: work.name for work in works(config)}
    for precision, folder in folders.items():
        named = bench.arithmetic(precision)
        sizes = {
            part: bench.size_mb(folder / convert.xml(part)) / 1e3 for part in ("language", "text_head", "image_head")
        }
        for step, head in (("answer", "text_head"), ("draw", "image_head")):
            share = (sizes["language"] + sizes[head]) * ours[named, names[step]]["throughput"] / bandwidth
            notes[f"{what}, tokens to {step} at {named}, share of the read bandwidth"] = round(share, 2)
    return notes


def live(precisions: tuple[str, ...] = parts.PRECISIONS, rounds: int = 3) -> list[dict]:
    """What the notebook measures: the tiny model, all in this process."""
    checkpoint = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    config = configuration(checkpoint)
    runs = {}
    for precision in bench.torch_precisions():
        runs |= eager(checkpoint, config, precision)
    for precision in precisions:
        runs |= openvino(convert.prepare("tiny", precision), config, precision)
    runs |= naive(convert.prepare("tiny", precisions[0]), config, precisions[0])
    return time_all(runs, works(config), rounds)


def main() -> None:
    tiny = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    place = paths.models_dir()
    preflight.check(ram_gb=20, disk_gb=15, what="The benchmark at the released size")
    place.mkdir(parents=True, exist_ok=True)
    rows, notes = [], {}
    with bench.exclusive() as load_now, TemporaryDirectory(dir=place) as scratch:
        large = seeded_checkpoint(released(), tiny, Path(scratch) / "checkpoint")
        for checkpoint, what, model, precisions, peers, rounds, label in (
            (tiny, "tiny", "tiny", parts.PRECISIONS, bench.torch_precisions(), 7, None),
            (large, "released size", "released", ("FP16", "INT4"), (bench.torch_precision(),), 3, SPEED_ONLY),
        ):
            group_size = convert.MODELS[model]["group_size"]
            folders, conversions = converted(checkpoint, Path(scratch) / model, precisions, group_size, label)
            timed = measured(checkpoint, folders, peers, rounds, label)
            notes |= limits(timed, folders, configuration(checkpoint), what)
            rows += conversions + timed
    report.save_bench("janus_pro", rows, notes | load_now)
