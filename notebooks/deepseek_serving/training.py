"""Trains the adapter that makes the tiny model think aloud: `python -m notebooks.deepseek_serving.training`.

The model learns to write the thoughts of `data.practice` between <think> and </think>, and then the answer. Every
fourth problem it answers at once, after thoughts that are empty. A run that was stopped goes on.
"""

from __future__ import annotations

import numpy as np
import torch

from notebooks.deepseek_serving import convert, data
from utils import paths
from utils.models.questions import load_torch
from utils.training import lora
from utils.training.loop import autocast, optimise

WORK = paths.training_dir(__package__)
RANK, STEPS, PROBLEMS, RATE = 8, 800, 6, 2e-3  # problems of a step


class Dialogues:
    """Problems as token ids, in the form of the chat template."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer
        template = convert.thinking_template(tokenizer.chat_template)
        chat = [{"role": "user", "content": "\0"}]
        text = tokenizer.apply_chat_template(chat, chat_template=template, add_generation_prompt=True, tokenize=False)
        start, _, rest = text.partition("<|im_start|>user")
        self.start = lora.chat_ids(tokenizer, start)
        self.turn = f"<|im_start|>user{rest}"

    def branch(self, own: data.Problem, thinks: bool) -> tuple[list[int], list[int]]:
        """The tokens that are given, and those that are learned."""
        given = self.turn.replace("\0", own.question) + ("" if thinks else convert.NO_THOUGHTS)
        learned = f"{own.thoughts}{convert.NO_THOUGHTS}{own.sentence}" if thinks else own.sentence
        ids = lora.chat_ids(self.tokenizer, learned) + [self.tokenizer.eos_token_id]
        return lora.chat_ids(self.tokenizer, given), ids

    def step(self, number: int) -> dict[str, torch.Tensor]:
        """The problems of a step as one sequence."""
        numbers = range(number * PROBLEMS, (number + 1) * PROBLEMS)
        return lora.packed(self.start, [self.branch(data.practice(i), with_thoughts(i)) for i in numbers])


def with_thoughts(number: int) -> bool:
    """Whether the model thinks about a training problem: about three of four in each wording."""
    return (number + number // len(data.WORDINGS)) % 4 > 0


def main() -> None:
    """Train, or go on, and write the adapter."""
    torch.manual_seed(0)
    network, tokenizer = load_torch(convert.checkpoint_of_tiny())
    adapter, dialogues = lora.Adapter(network, RANK), Dialogues(tokenizer)

    def loss(step: int, _: np.random.Generator) -> dict[str, torch.Tensor]:
        with autocast():
            return {"loss": lora.loss(network, dialogues.step(step))}

    optimise(WORK / "thinking.pt", adapter, loss, steps=STEPS, rate=RATE)
    adapter.save(convert.ADAPTER)
    print(f"{convert.ADAPTER}: {convert.ADAPTER.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
