"""Put the passages that a search found into a better order: a reranker reads each of them for the question.

`LateInteraction` needs no model of its own: it compares the tokens of the question with those of a passage, whose
vectors the embedding model makes (https://arxiv.org/abs/2004.12832). `CrossEncoder` runs a model that was trained to
judge a question and a passage together. Both have `scores(question, texts)`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import openvino_genai as genai

from .embedder import SETTINGS, TokenVectors
from .store import Passage

CANDIDATES = 20  # passages of a search that are put into a new order
COSINE = 0.5  # weight of the cosine of the mean vectors, where MaxSim weighs 1
MAX_TEXTS = 50  # that a cross-encoder scores in one call
MAX_TOKENS = 512  # of a question and a passage that a cross-encoder reads


class Reranker(Protocol):
    def scores(self, question: str, texts: Sequence[str]) -> np.ndarray:
        """How well each text answers the question, [texts]; higher is better."""


class LateInteraction:
    """For each token of the question the largest cosine with a token of the passage (MaxSim), where rare tokens count
    more, and COSINE times the cosine of the mean vectors.

    token_vectors: from texts to the vectors [tokens, dimensions] of each, of length 1. token_weights: from a question
    to the weight of each of its tokens, [tokens]. `TokenVectors` has both.
    """

    def __init__(
        self,
        token_vectors: Callable[[Sequence[str]], Sequence[np.ndarray]],
        token_weights: Callable[[str], np.ndarray],
    ) -> None:
        self.token_vectors, self.token_weights = token_vectors, token_weights

    def scores(self, question: str, texts: Sequence[str]) -> np.ndarray:
        """The score of each text, [texts]."""
        if not texts:
            return np.zeros(0, np.float32)
        (asked,), read = self.token_vectors([question]), self.token_vectors(texts)
        return maxsim(asked, read, self.token_weights(question)) + COSINE * mean_cosine(asked, read)


class CrossEncoder:
    """A model that reads a question and a passage together, from a folder that optimum-intel exported.

    One call runs at a time; further threads wait.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", **properties) -> None:
        # By default the pipeline returns three texts, and reads as many tokens as there are.
        options = {"top_n": MAX_TEXTS, "max_length": MAX_TOKENS}
        self._pipeline = genai.TextRerankPipeline(str(folder), device, **options, **properties)
        self._lock = threading.Lock()

    def scores(self, question: str, texts: Sequence[str]) -> np.ndarray:
        """The model's score of each text, [texts], from 0 to 1. Raises ValueError for more than MAX_TEXTS texts."""
        if len(texts) > MAX_TEXTS:
            raise ValueError(f"There are {len(texts)} passages. Rerank at most {MAX_TEXTS}.")
        scores = np.zeros(len(texts), np.float32)
        if texts:  # for none, the pipeline returns a score of an earlier call
            with self._lock:
                for place, score in self._pipeline.rerank(question, list(texts)):
                    scores[place] = score
        return scores


def open_reranker(folder: str | Path, device: str = "CPU") -> Reranker:
    """The reranker of a folder: `LateInteraction` for an embedding model, `CrossEncoder` for a cross-encoder."""
    if (Path(folder) / SETTINGS).is_file():
        tokens = TokenVectors(folder, device)
        return LateInteraction(tokens, tokens.weights)
    return CrossEncoder(folder, device)


def maxsim(question: np.ndarray, passages: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """[passages]: the weighted mean over the question's tokens of the largest cosine with a token of the passage.

    question: [tokens, dimensions]; passages: the same for each; all vectors have length 1. weights: [tokens].
    """
    cosines = np.concatenate(passages) @ question.T  # [tokens of all passages, tokens of the question]
    return np.maximum.reduceat(cosines, _begins(passages)) @ weights / max(weights.sum(), 1e-9)


def mean_cosine(question: np.ndarray, passages: Sequence[np.ndarray]) -> np.ndarray:
    """[passages]: the cosine of the mean vectors; see `maxsim`."""
    sums = np.add.reduceat(np.concatenate(passages), _begins(passages))  # [passages, dimensions]
    asked = question.sum(0)
    return sums @ asked / (np.linalg.norm(sums, axis=1) * np.linalg.norm(asked))


def _begins(passages: Sequence[np.ndarray]) -> np.ndarray:
    """Where each passage begins in the tokens of all of them."""
    return np.cumsum([0, *map(len, passages[:-1])])


def reorder(passages: Sequence[Passage], scores: np.ndarray) -> list[Passage]:
    """Passages by a reranker's scores [passages], the best first; equal ones stay in their order."""
    scored = [replace(own, rerank_score=float(score)) for own, score in zip(passages, scores, strict=True)]
    return sorted(scored, key=lambda own: -own.rerank_score)
