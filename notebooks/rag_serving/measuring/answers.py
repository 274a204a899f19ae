"""How many answers are right: with passages, from memory, and with passages that belong to another question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from notebooks.rag_serving.data import Ask
from notebooks.rag_serving.pipeline import Answerer, Passage, Retriever
from utils import compare

TOP = 3  # passages
TOKENS = 24  # of an answer
SHARE, GOAL = 0.25, 0.75  # of the questions: what must be right, and what would be useful
Reply = Callable[[str, Sequence[Passage]], str]


def contexts(retriever: Retriever, asked: Sequence[Ask], top: int = TOP) -> dict[str, list[list[Passage]]]:
    """The passages for each question: found ones, none, and those of a question on another document."""
    found = [retriever.search(own.question, top, rerank=False) for own in asked]
    others = [
        next(found[(place + step) % len(asked)] for step in range(1, len(asked))
             if asked[(place + step) % len(asked)].source != own.source)
        for place, own in enumerate(asked)
    ]  # fmt: skip
    return {f"top {top} passages": found, "no passages": [[] for _ in asked], "passages of another question": others}


def right(reply: Reply, asked: Sequence[Ask], passages: Sequence[Sequence[Passage]]) -> list[bool]:
    """Whether each answer is right."""
    return [own.is_right(reply(own.question, given)) for own, given in zip(asked, passages, strict=True)]


def by_openvino(answerer: Answerer) -> Reply:
    return lambda question, passages: answerer.ask(question, passages, max_new_tokens=TOKENS).text


def by_torch(checkpoint: Path, answerer: Answerer) -> Reply:
    """The same prompts with transformers, in FP32 and with greedy decoding."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    network.generation_config.pad_token_id = network.generation_config.eos_token_id

    def reply(question: str, passages: Sequence[Passage]) -> str:
        ids = answerer.tokenizer.encode(answerer.prompt(question, passages), add_special_tokens=False).input_ids.data
        ids = torch.from_numpy(np.array(ids))
        with torch.inference_mode():
            tokens = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        return answerer.tokenizer.decode(tokens[0, ids.shape[1] :].tolist())

    return reply


def quality(
    right_of: Mapping[str, Sequence[bool]], reference: Sequence[bool], controls: Mapping[str, Sequence[bool]]
) -> list[dict]:
    """Quality rows: right answers with TOP passages by precision; controls: the same questions, other passages."""
    count = len(reference)
    metric, limits = f"right answers of {count}, {TOP} passages", {"goal": GOAL, "of": count}
    rows = [
        compare.quality(metric, precision, float(np.mean(own)), float(np.mean(reference)), SHARE, "higher", **limits)
        for precision, own in right_of.items()
    ]
    return rows + [
        compare.control(metric, name, float(np.mean(own)), SHARE, "higher") for name, own in controls.items()
    ]
