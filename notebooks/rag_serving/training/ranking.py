"""Trains the cross-encoder that reranks: `python -m notebooks.rag_serving.training ranking`.

It begins as the embedding model, which gets low-rank matrices and an output for one score. It learns from the
documentation of other packages: the first sentence of an object's documentation asks for the rest of it, and among the
passages that the search finds, one of the right object has to get the highest score.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch.nn import functional as F

from notebooks.rag_serving import convert, data
from notebooks.rag_serving.data import Document
from notebooks.rag_serving.measuring import retrieval
from notebooks.rag_serving.pipeline.chunking import split
from notebooks.rag_serving.pipeline.reranker import CANDIDATES
from notebooks.rag_serving.pipeline.retriever import OVERLAP, TOKENS
from utils import paths
from utils.files import replaced
from utils.training import lora
from utils.training.loop import autocast, begin, optimise

WORK = paths.training_dir(__package__)
RANK, STEPS, QUESTIONS, TEXTS, RATE = 32, 1200, 4, 6, 2e-4
HELD_OUT = 10  # one question of so many
PROJECTIONS = ("query", "key", "value", "dense")
MAX_TOKENS = 256  # of a question and a passage
MULTIPLE = 16  # of tokens in a batch: few lengths, so that blocks of memory are used again
PASSAGES, BATCH = 12, 64  # passages of a document, and of those that are embedded together
T = TypeVar("T")


class Candidates(NamedTuple):
    """A question, and texts of the passages nearest to it: those of the right object, and others."""

    question: str
    right: list[str]
    wrong: list[str]


def candidates(file: Path) -> list[Candidates]:
    """The passages nearest to each question of practice, where some are right and enough are wrong; kept in a file.

    The embedding model finds them, without the words that a `Retriever` looks for, too.
    """
    if not file.is_file():
        checkpoint = convert.checkpoint_folder()
        documents, questions = data.practice_corpus()
        passages = cut(checkpoint, documents)
        print(f"embedding {len(passages)} passages", flush=True)
        embed = retrieval.mean_vectors(retrieval.torch_tokens(checkpoint, MAX_TOKENS))
        vectors = np.concatenate([embed([text for _, text in batch]) for batch in batches(passages)])
        asked = np.concatenate([embed([own.question for own in batch]) for batch in batches(questions)])
        nearest = np.argsort(-asked @ vectors.T, 1, kind="stable")[:, :CANDIDATES]  # [questions, CANDIDATES]
        found = []
        for own, places in zip(questions, nearest, strict=True):
            texts = {True: [], False: []}
            for source, text in (passages[place] for place in places):
                texts[source in own.sources].append(text)
            if texts[True] and len(texts[False]) >= TEXTS - 1:
                found.append((own.question, texts[True], texts[False]))
        with replaced(file) as partial:
            partial.write_text(json.dumps(found), encoding="utf-8")
    return [Candidates(*own) for own in json.loads(file.read_text(encoding="utf-8"))]


def cut(checkpoint: Path, documents: Sequence[Document]) -> list[tuple[str, str]]:
    """(source, text) of the first PASSAGES passages of each document, as a `Retriever` cuts and reads them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def count(words: Sequence[str]) -> list[int]:
        return list(map(len, tokenizer(list(words), add_special_tokens=False)["input_ids"]))

    return [
        (document.source, f"{document.source}\n{chunk.text}")
        for document in documents
        for chunk in split(document.text, count, TOKENS, OVERLAP)[:PASSAGES]
    ]


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Parts of `items` that are embedded together."""
    return (items[begin : begin + BATCH] for begin in range(0, len(items), BATCH))


def draw(found: Sequence[Candidates], rng: np.random.Generator) -> list[tuple[str, list[str]]]:
    """QUESTIONS questions with TEXTS texts each, of which the first is right."""
    chosen = []
    for place in rng.choice(len(found), QUESTIONS, replace=False):
        own = found[place]
        wrong = [own.wrong[i] for i in rng.choice(len(own.wrong), TEXTS - 1, replace=False)]
        chosen.append((own.question, [own.right[rng.integers(len(own.right))], *wrong]))
    return chosen


def share_first(scores: Callable[[Sequence[tuple[str, str]]], torch.Tensor], found: Sequence[Candidates]) -> float:
    """The share of questions for which a right passage gets the highest of all scores.

    scores: from pairs (question, text) to their scores, [pairs].
    """
    best = [int(scores([(own.question, text) for text in own.right + own.wrong]).argmax()) for own in found]
    return float(np.mean([place < len(own.right) for place, own in zip(best, found, strict=True)]))


def main() -> None:
    """Train, or go on, write the adapter, and print the share of held-out questions whose best passage is right."""
    from transformers import AutoTokenizer

    begin()
    found = candidates(WORK / "candidates.json")
    held_out = found[::HELD_OUT]
    practice = [own for place, own in enumerate(found) if place % HELD_OUT]
    print(f"{len(practice)} questions, and {len(held_out)} held out", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(convert.checkpoint_folder())
    options = {"padding": True, "pad_to_multiple_of": MULTIPLE, "return_tensors": "pt"}
    options |= {"truncation": "only_second", "max_length": MAX_TOKENS}
    network = convert.cross_encoder()  # without dropout, with which torch has no fast attention
    adapter = lora.Adapter(network, RANK, PROJECTIONS, whole=("classifier",))

    def scores(pairs: Sequence[tuple[str, str]]) -> torch.Tensor:
        return network(**tokenizer(*map(list, zip(*pairs, strict=True)), **options)).logits[:, 0]

    def loss(_: int, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        chosen = draw(practice, rng)
        with autocast():
            given = scores([(question, text) for question, texts in chosen for text in texts]).reshape(QUESTIONS, TEXTS)
        right = given.new_zeros(QUESTIONS, dtype=torch.long)  # the first text of each question
        return {"loss": F.cross_entropy(given.float(), right), "first": (given.argmax(1) == 0).float().mean()}

    optimise(WORK / "ranking.pt", adapter, loss, steps=STEPS, rate=RATE)
    adapter.save(convert.RANKING)
    with torch.inference_mode():
        share = share_first(scores, held_out)
    print(f"{convert.RANKING}: a right passage comes first for {share:.1%} of the questions held out")


if __name__ == "__main__":
    main()
