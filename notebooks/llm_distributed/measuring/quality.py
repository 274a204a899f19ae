"""Parity with PyTorch, and perplexity on one process, on ranks, and on ranks that were cut wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from notebooks.llm_distributed.convert import cutting
from notebooks.llm_distributed.pipeline.ranks import Ranks
from notebooks.llm_distributed.pipeline.shares import Share
from utils import compare
from utils.models import llm
from utils.models.llm import FP32_PROPERTIES, MODEL_XML

WINDOW = 512  # tokens of the page
TOKENS = 128  # that are generated after each prompt
PROMPTS = ("What is the capital of France?", "Why is the sky blue?", "Write a short story about a lighthouse.")
LOGITS_TOLERANCE = 0.02
METRIC, ALONE = "perplexity of a page on two ranks", "perplexity of a page in one process"
ALLOWED = {"FP32": 1.01, "INT8": 1.03, "INT4": 1.35}  # times PyTorch's perplexity
SILENT = "notebooks.llm_distributed.measuring.silent"


@dataclass(frozen=True)
class Examined:
    """What a number of ranks answered. tokens: for each prompt; logits: of the first prompt, [1, n, vocabulary]."""

    tokens: list[list[int]]
    logits: np.ndarray | None
    perplexity: float


def prompts(tokenizer) -> list[list[int]]:
    """The token ids of PROMPTS in the model's chat template."""
    chats = ([{"role": "user", "content": text}] for text in PROMPTS)
    return [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"] for chat in chats
    ]


def page(tokenizer) -> np.ndarray:
    """The first WINDOW tokens [1, WINDOW] of a book's page."""
    text = (llm.TEXT / "evaluation.txt").read_text(encoding="utf-8")
    return np.array([tokenizer(text)["input_ids"][:WINDOW]])


def examine(
    folders: Sequence[Path], asked: Sequence[Sequence[int]], page: np.ndarray, count: int = TOKENS, **options
) -> Examined:
    """Ask ranks in FP32. asked: prompts, of which the first is also asked for its logits; options: of `Ranks`."""
    with Ranks(folders, timeout_s=60, **FP32_PROPERTIES | options) as ranks:
        tokens = [[step.token for step in ranks.generate(ids, count)] for ids in asked]
        logits = ranks.logits(asked[0]) if asked else None
        return Examined(tokens, logits, float(np.exp(-ranks.log_likelihoods(page[0]).mean())))


def examine_torch(checkpoint: Path, asked: Sequence[Sequence[int]], page: np.ndarray, count: int = TOKENS) -> Examined:
    """The same of the transformers model in FP32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # the ranks go on after the end of an answer, too
    options = {"do_sample": False, "max_new_tokens": count, "pad_token_id": 0}
    tokens = []
    with torch.inference_mode():
        for ids in asked:
            tokens.append(model.generate(torch.tensor([ids]), **options)[0, len(ids) :].tolist())
        logits = model(torch.tensor([asked[0]])).logits.numpy()
        value = llm.perplexity(lambda ids: model(torch.from_numpy(ids)).logits.numpy(), page, WINDOW)
    return Examined(tokens, logits, value)


def parity(found: Mapping[int, Examined], reference: Examined) -> list[dict]:
    """Rows of logits and tokens. found: by number of ranks; each may have fewer tokens than the reference."""
    rows = []
    for ranks, own in found.items():
        name = "one process" if ranks == 1 else f"{ranks} ranks"
        rows.append(compare.parity(f"logits, {name}", own.logits, reference.logits, LOGITS_TOLERANCE))
        expected = [tokens[: len(mine)] for mine, tokens in zip(own.tokens, reference.tokens, strict=True)]
        rows.append(compare.parity(f"{sum(map(len, own.tokens))} tokens, {name}", own.tokens, expected, 0))
    return rows


def quality(
    alone: Mapping[str, float], together: Mapping[str, float], broken: Mapping[str, float], reference: float
) -> list[dict]:
    """Rows of perplexity. alone, together: of one process and of two ranks, by precision; broken: of the controls."""
    rows = []
    for metric, found in ((METRIC, together), (ALONE, alone)):
        for precision, value in found.items():
            limit = ALLOWED[precision] * reference
            rows.append(compare.quality(metric, precision, value, reference, limit, "lower"))
    worst = max(ALLOWED.values()) * reference
    controls = [compare.control(METRIC, name, value, worst, "lower") for name, value in broken.items()]
    return rows + controls + [compare.control(ALONE, *next(iter(broken.items())), worst, "lower")]


def controls(two: Sequence[Path], three: Sequence[Path], page: np.ndarray) -> dict[str, float]:
    """Perplexities of ranks that are wrong on purpose, in FP32. two, three: the folders of two and of three ranks."""
    broken = {"all-reduce left out": examine(two, [], page, module=SILENT).perplexity}
    wrong = {
        "attention's last matrix of the next rank": (("o_proj",), lambda rank: (rank + 1) % len(three)),
        "the same keys and values on all ranks": (("k_proj", "v_proj"), lambda rank: 0),
    }
    for name, (layers, donor) in wrong.items():
        with TemporaryDirectory() as scratch:
            folders = exchanged(three, layers, donor, Path(scratch))
            broken[name] = examine(folders, [], page).perplexity
    return broken


def exchanged(folders: Sequence[Path], layers: Sequence[str], donor, target: Path) -> list[Path]:
    """Shares with the weights of `layers` from other ranks; donor(rank): which one. Returns folders in `target`."""
    core, found = ov.Core(), []
    models = [core.read_model(folder / MODEL_XML) for folder in folders]
    weights = [_weights(model, layers) for model in models]
    values = [{name: node.get_data().copy() for name, node in own.items()} for own in weights]
    for rank, (model, own) in enumerate(zip(models, weights, strict=True)):
        for name, node in own.items():
            new = ops.constant(values[donor(rank)][name])
            node.output(0).replace(new.output(0))
        found.append(target / f"rank-{rank}")
        found[-1].mkdir()
        ov.save_model(model, found[-1] / MODEL_XML)
        share = Share.read(folders[rank])
        cutting.sign(found[-1], share, share.source)
    return found


def _weights(model: ov.Model, layers: Sequence[str]) -> dict[str, ov.Node]:
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    names = {node.get_friendly_name(): node for node in constants}
    return {name: node for name, node in names.items() if any(f".{layer}." in name for layer in layers)}
