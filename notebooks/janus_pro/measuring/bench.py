"""Speed and memory of Janus-Pro and its peers: `python -m notebooks.janus_pro.measuring.bench`.

The notebook measures `live`, the tiny model. This module takes an hour and writes results/bench/janus_pro.json: the
same at the size of the released Janus-Pro-1B, with random weights that are converted as the released ones would be.
The pipeline draws with guidance in a batch of two and the KV cache inside OpenVINO. It is compared with the naive way:
two requests, and a cache that is copied to Python and back with every token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
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
from notebooks.janus_pro.pipeline import Janus, preprocess
from utils import bench, paths, preflight, report, weights
from utils.models import parts
from utils.models.llm_speed import layer_weights
from utils.models.random_checkpoint import timed_conversions, weights_mb

SPEED_ONLY = "released size of 1B, random weights, speed only"
QUESTION_TOKENS, ANSWER_TOKENS = 32, 32
PARTIAL_TOKENS = 24  # of a drawing that is stopped early
GUIDANCE = 5.0
EAGER, OURS, NAIVE = "torch eager", "openvino", "openvino, naive"
TYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}
UNITS = {
    "encode": "pictures/s",
    "read": "prompts/s",
    "answer": "tokens/s",
    "draw": "tokens/s",
    "decode": "pictures/s",
    "read text": "prompts/s",
}


class Workload(NamedTuple):
    """What a call does. step: of UNITS; tokens: how many it generates or reads, in addition to a picture or alone."""

    name: str
    step: str
    tokens: int = 0


Run = Callable[[Workload], np.ndarray]


def workloads(config: JanusConfig) -> list[Workload]:
    """What is timed, in this order: "answer" continues from the prompt that was read last."""
    side = config.vision_config.image_size
    as_many = config.vision_config.num_image_tokens + QUESTION_TOKENS  # as a picture and its question
    return [
        Workload(f"see a picture of {side} x {side}", "encode"),
        Workload(f"first token, a picture and {QUESTION_TOKENS} tokens", "read", QUESTION_TOKENS),
        Workload(f"answer with {ANSWER_TOKENS} tokens after them", "answer", ANSWER_TOKENS),
        Workload(f"draw the first {PARTIAL_TOKENS} tokens", "draw", PARTIAL_TOKENS),
        Workload("make a picture of its tokens", "decode"),
        Workload(f"first token, {as_many} tokens", "read text", as_many),
    ]


def stages(config: JanusConfig) -> tuple[str, dict[str, int]]:
    """The workload of a first token with a picture, and how often each of its stages runs in it."""
    named = {work.step: work.name for work in workloads(config)}
    return named["read"], {named["encode"]: 1, named["read text"]: 1}


def whole_drawing(config: JanusConfig) -> Workload:
    """A drawing from its first token to its last one."""
    count = config.vq_config.num_patches**2
    return Workload(f"draw all {count} tokens", "draw", count)


def picture(side: int) -> Image.Image:
    """A picture of noise."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


def prompt(vocabulary: int, count: int) -> list[int]:
    """`count` token ids."""
    return np.random.default_rng(1).integers(0, vocabulary, count).tolist()


def codes(config: JanusConfig) -> np.ndarray:
    """[1, t]: the tokens of a drawing."""
    shape = 1, config.vq_config.num_patches**2
    return np.random.default_rng(2).integers(0, config.vq_config.num_embeddings, shape)


class Eager:
    """PyTorch eager, on all cores. Decoding is greedy, so that all runtimes generate the same tokens.

    A call returns what it computed: embeddings [1, T, D], token ids [k], or pixels [1, 3, S, S].
    """

    def __init__(self, checkpoint: Path, precision: str) -> None:
        self.model = load(checkpoint, dtype=TYPES[precision])
        self._cache: DynamicCache | None = None
        self._token = 0  # the last one

    @torch.inference_mode()
    def __call__(self, work: Workload) -> np.ndarray:
        model, config = self.model, self.model.config
        if work.step == "encode":
            return self._encode_picture().float().numpy()
        if work.step == "decode":
            return model.model.vqmodel.decode(torch.from_numpy(codes(config))).float().numpy()
        if work.step == "draw":
            return self._draw(work.tokens)
        if work.step in ("read", "read text"):
            self._reset_cache()
            embeddings = [self._encode_picture()] if work.step == "read" else []
            embeddings.append(self._embed([prompt(config.text_config.vocab_size, work.tokens)]))  # [1, T, D]
            return np.array([self._next_token(torch.cat(embeddings, 1))])
        return np.array([self._next_token(self._embed([[self._token]])) for _ in range(work.tokens)])

    def _encode_picture(self) -> torch.Tensor:
        side = self.model.config.vision_config.image_size
        pixels = torch.from_numpy(preprocess(picture(side), side)).to(self.model.dtype)
        return self.model.model.aligner(self.model.model.vision_model(pixels).last_hidden_state)

    def _reset_cache(self) -> None:
        self._cache = DynamicCache(config=self.model.config.text_config)

    def _embed(self, rows: list[list[int]]) -> torch.Tensor:
        return self.model.get_input_embeddings()(torch.tensor(rows))

    def _read(self, embeddings: torch.Tensor) -> torch.Tensor:
        network = self.model.model.language_model
        return network(inputs_embeds=embeddings, past_key_values=self._cache).last_hidden_state[:, -1]

    def _next_token(self, embeddings: torch.Tensor) -> int:
        self._token = int(self.model.lm_head(self._read(embeddings)).argmax())
        return self._token

    def _draw(self, count: int) -> np.ndarray:
        self._reset_cache()
        ids = prompt(self.model.config.text_config.vocab_size, QUESTION_TOKENS)
        embeddings, tokens = self._embed([ids, unconditional_prompt(ids)]), []  # [2, T, D]
        while len(tokens) < count:
            conditional, unconditional = self.model.model.generation_head(
                self._read(embeddings)
            ).float()  # [codes] each
            tokens.append((unconditional + GUIDANCE * (conditional - unconditional)).argmax())
            embeddings = self.model.prepare_embeddings_for_image_generation(tokens[-1].repeat(2, 1))  # [2, 1, D]
        return torch.stack(tokens).numpy()


def unconditional_prompt(ids: list[int]) -> list[int]:
    """As many tokens as a prompt has, 0 but for the first and the last, which are those of the prompt."""
    return [ids[0], *[0] * (len(ids) - 2), ids[-1]]


class OpenVINO:
    """The single steps of a `Janus`, called like `Eager`."""

    def __init__(self, folder: Path, config: JanusConfig, **properties: str) -> None:
        self.janus, self.config = Janus(folder, **properties), config
        self._token = 0  # the last one

    def __call__(self, work: Workload) -> np.ndarray:
        janus, vocabulary = self.janus, self.config.text_config.vocab_size
        if work.step == "encode":
            return janus.encode_picture(picture(janus.image_size))
        if work.step == "decode":
            return janus.run("image_decoder", {"tokens": codes(self.config)})
        if work.step == "draw":
            ids = prompt(vocabulary, QUESTION_TOKENS)
            options = {"guidance": GUIDANCE, "temperature": 0.0, "count": work.tokens}
            return janus.sample_image_tokens(ids, unconditional_prompt(ids), **options)[0]
        if work.step in ("read", "read text"):
            janus.reset_cache()
            embeddings = [janus.encode_picture(picture(janus.image_size))] if work.step == "read" else []
            embeddings.append(janus.embed(prompt(vocabulary, work.tokens)))  # [1, T, D]
            return np.array([self._next_token(np.concatenate(embeddings, 1))])
        return np.array([self._next_token(janus.embed([self._token])) for _ in range(work.tokens)])

    def _next_token(self, embeddings: np.ndarray) -> int:
        hidden = self.janus.read(embeddings)[:, -1]  # [1, D]
        self._token = int(self.janus.run("text_head", {"hidden": hidden}).argmax())
        return self._token


class Naive:
    """Drawing without the three optimisations of the pipeline: guidance takes two requests, called one after the other,
    and cache and logits are copied to Python with every token."""

    def __init__(self, folder: Path, config: JanusConfig, **properties: str) -> None:
        core, self.config = ov.Core(), config

        def compiled(part: str) -> ov.CompiledModel:
            return core.compile_model(core.read_model(folder / convert.xml(part)), "CPU", properties)

        language = compiled("language")
        self._language = [language.create_infer_request() for _ in range(2)]
        parts = "text_embeddings", "image_head", "generation_embeddings"
        self._requests = {part: compiled(part).create_infer_request() for part in parts}

    def __call__(self, work: Workload) -> np.ndarray:
        ids, tokens = prompt(self.config.text_config.vocab_size, QUESTION_TOKENS), []
        rows = (ids, unconditional_prompt(ids))
        embeddings = [self._infer("text_embeddings", {"input": np.int64([row])}) for row in rows]  # two of [1, T, D]
        for request in self._language:
            request.reset_state()
        caches: list[list[np.ndarray]] = [[], []]
        past = 0
        while len(tokens) < work.tokens:
            total = past + embeddings[0].shape[1]
            inputs = zip(self._language, caches, embeddings, strict=True)
            hidden = [self._read(request, cache, x, past, total) for request, cache, x in inputs]  # two of [1, D]
            conditional, unconditional = (self._infer("image_head", {"hidden": x}) for x in hidden)  # [1, codes] each
            tokens.append(int((unconditional + GUIDANCE * (conditional - unconditional)).argmax()))
            embeddings = [self._infer("generation_embeddings", {"input": np.int64([[tokens[-1]]])})] * 2
            past = total
        return np.array(tokens)

    def _infer(self, part: str, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        self._requests[part].infer(inputs)
        return self._requests[part].get_output_tensor(0).data.copy()

    @staticmethod
    def _read(
        request: ov.InferRequest, cache: list[np.ndarray], embeddings: np.ndarray, past: int, total: int
    ) -> np.ndarray:
        """The last hidden state [1, D]; the cache is set before and fetched after the call."""
        for state, value in zip(request.query_state(), cache, strict=False):
            state.state = ov.Tensor(value)
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


def settings(checkpoint: Path, folders: Mapping[str, Path], peers: Sequence[str], naive: Sequence[str]):
    """PyTorch at the precisions `peers`, the pipeline on IR folders, and the naive way on those of `naive`."""
    found = [
        bench.Setting(EAGER, precision, start, (EAGER, checkpoint, checkpoint, precision), weights_mb(checkpoint))
        for precision in peers
    ]
    for precision, folder in folders.items():
        for runtime in (OURS, NAIVE) if precision in naive else (OURS,):
            arguments = (runtime, folder, checkpoint, precision)
            found.append(bench.Setting(runtime, bench.arithmetic(precision), start, arguments, weights_mb(folder)))
    return found


def start(runtime: str, folder: Path, checkpoint: Path, precision: str) -> dict[str, Callable[[], object]]:
    """The workloads of a runtime: the naive one only draws. Answers go on from the prompt that is read before."""
    config = configuration(checkpoint)
    if runtime == EAGER:
        run: Run = Eager(folder, precision)
    else:
        run = (OpenVINO if runtime == OURS else Naive)(folder, config)
    calls = {work.name: partial(run, work) for work in workloads(config) if runtime != NAIVE or work.step == "draw"}
    if runtime == NAIVE:
        return calls
    named = {work.step: work for work in workloads(config)}
    calls[named["answer"].name] = bench.Prepared(partial(run, named["read"]), calls[named["answer"].name])
    return calls | {whole_drawing(config).name: partial(run, whole_drawing(config))}


def timed(work: Workload) -> bench.Workload:
    """The same for `bench.compare`."""
    return bench.Workload(work.name, work.tokens if work.step in ("answer", "draw") else 1, UNITS[work.step])


def measure(
    checkpoint: Path, folders: Mapping[str, Path], peers: tuple[str, ...], rounds: int, label: str | None = None
) -> list[dict]:
    """Speed rows of PyTorch at the precisions `peers` and of the IR folders. A whole drawing is timed once."""
    config, compared = configuration(checkpoint), settings(checkpoint, folders, peers, naive=tuple(folders))
    rows = bench.compare(compared, [timed(work) for work in workloads(config)], rounds, label=label)
    # the naive way would copy its caches 576 times; a whole drawing takes minutes, and warms up in its first tokens
    without_naive = [setting for setting in compared if setting.runtime != NAIVE]
    return rows + bench.compare(without_naive, [timed(whole_drawing(config))], 1, warmup=0, label=label)


def limits(rows: list[dict], folders: Mapping[str, Path], config: JanusConfig, what: str) -> dict[str, float]:
    """OpenVINO's share of the machine's read bandwidth and arithmetic, which are measured now.

    Every token reads all weights of the language model: one of an answer, or one of a drawing with its two rows. To
    read a token of a prompt, every weight of its layers takes two operations.
    """
    bandwidth, product = bench.read_bandwidth_gbs(), bench.matmul_gflops("bf16")
    notes = {"read bandwidth, GB/s": round(bandwidth, 1), "largest bf16 matrix product, GFLOP/s": round(product)}
    ours = {(row["precision"], row["workload"]): row for row in rows if row["runtime"] == OURS}
    names = {work.step: work.name for work in workloads(config)}
    *_, reading = workloads(config)
    gflop = 2e-9 * layer_weights(config.text_config.to_dict()) * reading.tokens
    for precision, folder in folders.items():
        name = bench.arithmetic(precision)
        share = gflop * 1e3 / ours[name, reading.name]["median_ms"] / product
        notes[f"{what}, reading a prompt at {name}, share of that product"] = round(share, 2)
        sizes = {
            part: bench.size_mb(folder / convert.xml(part)) / 1e3 for part in ("language", "text_head", "image_head")
        }
        for step, head in (("answer", "text_head"), ("draw", "image_head")):
            share = (sizes["language"] + sizes[head]) * ours[name, names[step]]["throughput"] / bandwidth
            notes[f"{what}, tokens to {step} at {name}, share of the read bandwidth"] = round(share, 2)
    return notes


@bench.live
def live(precisions: tuple[str, ...] = parts.PRECISIONS, rounds: int = 3) -> list[dict]:
    """What the notebook measures: the tiny model."""
    checkpoint = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    folders = {precision: convert.prepare("tiny", precision) for precision in precisions}
    compared = settings(checkpoint, folders, bench.torch_precisions(), naive=precisions[:1])
    return bench.compare(compared, [timed(work) for work in workloads(configuration(checkpoint))], rounds)


def main() -> None:
    tiny = weights.resolve(convert.MODELS["tiny"]["checkpoint"])
    models = paths.models_dir()
    preflight.check(ram_gb=20, disk_gb=15, what="The benchmark at the released size")
    models.mkdir(parents=True, exist_ok=True)
    rows, notes, explained = [], {}, []
    with bench.exclusive() as load_now, TemporaryDirectory(dir=models) as scratch:
        large = seeded_checkpoint(released(), tiny, Path(scratch) / "checkpoint")
        for checkpoint, what, model, precisions, peers, rounds, label in (
            (tiny, "tiny", "tiny", parts.PRECISIONS, bench.torch_precisions(), 7, None),
            (large, "released size", "released", ("FP16", "INT4"), (bench.torch_precision(),), 3, SPEED_ONLY),
        ):
            group_size = convert.MODELS[model]["group_size"]
            folders, conversions = timed_conversions(
                convert.to_ir, convert.compress, checkpoint, Path(scratch) / model, precisions, group_size, label
            )
            measured = measure(checkpoint, folders, peers, rounds, label)
            config = configuration(checkpoint)
            notes |= limits(measured, folders, config, what) | bench.stage_shares(measured, *stages(config), what)
            explained.append((measured, *stages(config)))
            rows += conversions + measured
    report.save_bench("janus_pro", rows, notes | load_now)
    for measured in explained:
        bench.explain(*measured)
