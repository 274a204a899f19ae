"""An embedder and a language model without models, for tests of everything around them."""

import hashlib
import re
import threading
import time
from collections.abc import Sequence

import numpy as np

from notebooks.rag_serving.pipeline import Answer, Passage, Store
from notebooks.rag_serving.pipeline.retriever import check_question

DIMENSIONS = 32


class Embedder:
    """The sum of a random vector for each word, so that texts with equal words are near each other."""

    def __init__(self, identity: str = "fake") -> None:
        self.identity, self.dimensions, self.max_tokens = identity, DIMENSIONS, 256
        self.embedded = 0  # passages

    def documents(self, texts: Sequence[str]) -> np.ndarray:
        self.embedded += len(texts)
        return np.stack([self.question(text) for text in texts])

    def question(self, text: str) -> np.ndarray:
        vector = sum((_of_word(word) for word in re.findall(r"\w+", text.lower())), np.full(DIMENSIONS, 1e-3))
        return (vector / np.linalg.norm(vector)).astype(np.float32)

    def count_tokens(self, words: Sequence[str]) -> list[int]:
        return [1] * len(words)


def token_vectors(texts: Sequence[str]) -> list[np.ndarray]:
    """A random vector for each word of each text, of length 1."""
    words = ([_of_word(word) for word in re.findall(r"\w+", text.lower())] for text in texts)
    return [np.stack([own / np.linalg.norm(own) for own in vectors]) for vectors in words]


def token_weights(text: str) -> np.ndarray:
    return np.ones(len(re.findall(r"\w+", text)))


def _of_word(word: str) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).standard_normal(DIMENSIONS)


class Answerer:
    """Says the words of the first passage, one by one; `go` holds it back while it is not set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.prompted = self.busy = self.most_at_once = self.cancelled = 0

    def prompt(self, question: str, passages: Sequence[Passage] = ()) -> str:
        check_question(question)
        self.prompted += 1
        return question

    def ask(self, question: str, passages: Sequence[Passage] = (), stream=None) -> Answer:
        self.busy += 1
        self.most_at_once = max(self.busy, self.most_at_once)
        words, said = (passages[0].text.split() if passages else ["nothing"]), []
        try:
            for word in words:
                said.append(word)
                left, end = stream(word + " "), time.monotonic() + 60
                while not left and not self.go.wait(0.05) and time.monotonic() < end:
                    left = stream("")  # held back, it says nothing, again and again
                if left:
                    self.cancelled += 1
                    return Answer(" ".join(said), list(passages), finish_reason="cancelled")
        finally:
            self.busy -= 1
        return Answer(" ".join(said), list(passages), [[(0, 1)] for _ in passages])


def store(url: str, identity: str = "fake", **options) -> Store:
    return Store(url, identity, DIMENSIONS, **options)
