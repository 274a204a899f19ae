"""Trains the adapter with which the tiny model reads passages: `python -m notebooks.rag_serving.training reading`.

The model learns to answer from three passages of invented sheets, in the pipeline's own prompt. A run that was stopped
goes on.
"""

from __future__ import annotations

import numpy as np
import torch

from notebooks.rag_serving import convert
from notebooks.rag_serving.pipeline import Answerer, Passage
from notebooks.rag_serving.training.sheets import Task, task
from utils import paths
from utils.models import llm
from utils.models.questions import load_torch
from utils.training import lora
from utils.training.loop import autocast, begin, optimise

WORK = paths.training_dir(__package__)
RANK, STEPS, QUESTIONS, RATE = 8, 900, 6, 1.5e-3
MARK = "QUESTION"  # in place of a question


class Prompts:
    """Tasks as token ids, in the prompt of an `Answerer`."""

    def __init__(self, tokenizer, answerer: Answerer) -> None:
        self.tokenizer, self.answerer = tokenizer, answerer

    def packed(self, own: Task) -> dict[str, torch.Tensor]:
        """The passages once, and after them each question by itself."""
        start, turn = self.answerer.prompt(MARK, passages_of(own)).split(f" {MARK}")
        branches = []
        for question, answer, _ in own.questions:
            learned = [*lora.chat_ids(self.tokenizer, answer), self.tokenizer.eos_token_id]
            branches.append((lora.chat_ids(self.tokenizer, f" {question}{turn}"), learned))
        return lora.packed(lora.chat_ids(self.tokenizer, start), branches)


def passages_of(own: Task) -> list[Passage]:
    """The passages of a task as a search returns them."""
    return [Passage(source, place, 0, text, 0, *[None] * 4) for place, (source, text) in enumerate(own.passages)]


def main() -> None:
    """Train, or go on, and write the adapter."""
    begin()
    checkpoint = convert.plain_llm()
    network, tokenizer = load_torch(checkpoint)
    adapter, prompts = lora.Adapter(network, RANK), Prompts(tokenizer, Answerer(llm.ir_folder("smollm2", checkpoint)))

    def loss(step: int, _: np.random.Generator) -> dict[str, torch.Tensor]:
        with autocast():
            return {"loss": lora.loss(network, prompts.packed(task(step, QUESTIONS)))}

    optimise(WORK / "reading.pt", adapter, loss, steps=STEPS, rate=RATE)
    adapter.save(convert.READING)
    print(f"{convert.READING}: {convert.READING.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
