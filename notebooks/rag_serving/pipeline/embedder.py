"""Vectors of texts with OpenVINO: one for each text, or one for each of its tokens."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai

SETTINGS = "embedder.json"  # in the model's folder: name, pooling, max_tokens, dimensions, query_instruction
WEIGHTS = "token_weights.npy"  # in the same folder: [vocabulary], how much a token of a question counts
MODEL = "openvino_model.xml"
BATCH = 16  # texts that are embedded in one call
KNOWN_WORDS = 200_000  # whose numbers of tokens are kept


class Embedder:
    """Vectors of texts, from a folder with an IR, its tokenizer and `embedder.json`.

    `identity` says which model and which weights made the vectors. pipelines: how many texts are embedded at the same
    time; a pipeline of openvino_genai serves one thread. pooling: by default that of `embedder.json`; another one is
    for showing what it costs. Raises ValueError for a folder without these files.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", *, pipelines: int = 1, pooling: str = "", **properties):
        folder = Path(folder)
        settings = read_settings(folder)
        pooling = pooling or settings["pooling"]
        self.dimensions, self.max_tokens = settings["dimensions"], settings["max_tokens"]
        weights = (folder / MODEL).with_suffix(".bin").read_bytes()
        self.identity = f"{settings['name']}, {pooling}, {hashlib.sha256(weights).hexdigest()[:16]}"
        options = {"pooling_type": getattr(genai.TextEmbeddingPipeline.PoolingType, pooling), "normalize": True}
        options |= {"max_length": self.max_tokens}  # a longer text is cut
        if settings.get("query_instruction"):
            options["query_instruction"] = settings["query_instruction"]
        self._pipelines: queue.SimpleQueue = queue.SimpleQueue()
        for _ in range(pipelines):
            self._pipelines.put(genai.TextEmbeddingPipeline(str(folder), device, **options, **properties))
        self._tokenizer, self._counts, self._counting = genai.Tokenizer(str(folder)), {}, threading.Lock()

    def documents(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors [texts, dimensions] of passages, normalised."""
        vectors = []
        for begin in range(0, len(texts), BATCH):
            with self._pipeline() as pipeline:
                vectors += pipeline.embed_documents(list(texts[begin : begin + BATCH]))
        return np.asarray(vectors, np.float32).reshape(len(texts), self.dimensions)

    def question(self, text: str) -> np.ndarray:
        """The vector [dimensions] of a question, normalised."""
        with self._pipeline() as pipeline:
            return np.asarray(pipeline.embed_query(text), np.float32)

    def count_tokens(self, words: Sequence[str]) -> list[int]:
        """The number of tokens of each word, without special tokens."""
        with self._counting:
            if new := list({word for word in words if word not in self._counts}):
                if len(self._counts) > KNOWN_WORDS:
                    self._counts.clear()
                    new = list(set(words))
                mask = self._tokenizer.encode(new, add_special_tokens=False).attention_mask.data  # [words, tokens]
                self._counts.update(zip(new, mask.sum(1).tolist(), strict=True))
            return [self._counts[word] for word in words]

    @contextmanager
    def _pipeline(self) -> Iterator[genai.TextEmbeddingPipeline]:
        pipeline = self._pipelines.get()
        try:
            yield pipeline
        finally:
            self._pipelines.put(pipeline)


class TokenVectors:
    """The vectors of all tokens of texts, from the folder of an `Embedder` with the architecture of BERT.

    One call runs at a time; further threads wait. Raises ValueError for a folder without an embedding model or without
    `token_weights.npy`.
    """

    def __init__(self, folder: str | Path, device: str = "CPU", **properties) -> None:
        folder = Path(folder)
        self._max_tokens = read_settings(folder)["max_tokens"]
        try:
            self._weights = np.load(folder / WEIGHTS)
        except OSError as error:
            raise ValueError(f"{folder} has no {WEIGHTS}, which a reranker needs. Convert the model again.") from error
        self._tokenizer = genai.Tokenizer(str(folder))
        model = ov.Core().compile_model(folder / MODEL, device, properties)
        self._names = [port.any_name for port in model.inputs]
        self._request, self._lock = model.create_infer_request(), threading.Lock()

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray]:
        """For each text the vectors [tokens, dimensions] of its tokens, each of length 1; a longer text is cut.

        Texts of like lengths share a batch, so that little of it is padding.
        """
        vectors: list[np.ndarray] = [np.empty(0)] * len(texts)
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        with self._lock:
            for begin in range(0, len(order), BATCH):
                own = order[begin : begin + BATCH]
                tokens = self._encode([texts[place] for place in own])
                ids, mask = tokens.input_ids.data, tokens.attention_mask.data  # [texts, tokens]
                inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
                hidden = self._request.infer({name: inputs[name] for name in self._names})[0]
                hidden = hidden / np.linalg.norm(hidden, axis=2, keepdims=True)  # [texts, tokens, dimensions]
                for place, vector, is_text in zip(own, hidden, mask.astype(bool), strict=True):
                    vectors[place] = vector[is_text]
        return vectors

    def weights(self, text: str) -> np.ndarray:
        """How much each token of a question counts, [tokens]: a rare one more, a special one nothing."""
        return self._weights[self._encode([text]).input_ids.data[0]]

    def _encode(self, texts: Sequence[str]) -> genai.TokenizedInputs:
        return self._tokenizer.encode(texts, max_length=self._max_tokens, truncation=True)


def read_settings(folder: Path) -> dict:
    """What `embedder.json` says. Raises ValueError for a folder without it or without a model."""
    try:
        if not (folder / MODEL).with_suffix(".bin").is_file():
            raise FileNotFoundError(f"{MODEL} has no weights")
        return json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no embedding model ({error}). Convert one first.") from error
