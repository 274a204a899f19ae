"""The semantic tokens of a sentence, with OpenVINO and numpy: the decoder with its KV cache, and sampling.

X: phonemes, Y: tokens of the recording, V: size of the vocabulary, the last entry of which is the end token.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import openvino as ov

TOKENS_PER_S = 25  # of speech
MIN_TOKENS, MAX_TOKENS = 11, 1500  # of a sentence: from half a second to a minute
SUBMODELS = ("text_embeddings", "audio_embeddings", "language")


class SemanticDecoder:
    """The converted token decoder, for one sentence at a time. Its KV cache is inside the model."""

    def __init__(self, folder: str | Path, device: str = "CPU", **properties: str) -> None:
        files = [Path(folder) / f"openvino_{part}_model.xml" for part in SUBMODELS]
        models = [ov.Core().compile_model(file, device, properties) for file in files]
        self.text, self.audio, self.language = (model.create_infer_request() for model in models)
        self.cached = self.position = 0

    def prefill(self, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """Logits [V] of the first token; resets the cache.

        phones: [X] int64, ids of the phonemes. bert: [1024, X] float32, their features. prompts: [Y] int64, the tokens
        of the recording.
        """
        self.language.reset_state()
        self.cached = self.position = 0
        self.text.infer({"phones": phones[None], "bert": bert[None]})
        rows = [self.text.get_output_tensor(0).data]  # [1, X, D]
        if len(prompts):
            rows.append(self._embed(prompts))  # [1, Y, D]
        return self._logits(np.concatenate(rows, 1), len(phones))

    def step(self, token: int) -> np.ndarray:
        """Logits [V] of the token that follows `token`."""
        return self._logits(self._embed(np.array([token], np.int64)), 0)

    def _embed(self, tokens: np.ndarray) -> np.ndarray:
        positions = np.arange(self.position, self.position + len(tokens))
        self.position += len(tokens)
        self.audio.infer({"tokens": tokens[None], "position_ids": positions[None]})
        return self.audio.get_output_tensor(0).data

    def _logits(self, embeddings: np.ndarray, text: int) -> np.ndarray:
        """Logits [V] after the embeddings [1, T, D], of which the first `text` are phonemes."""
        self.cached += embeddings.shape[1]
        self.language.infer(
            {
                "inputs_embeds": embeddings,
                "attention_mask": np.ones((1, self.cached), np.int64),
                "text_length": np.array(text, np.int64),
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        return self.language.get_output_tensor(0).data[0].copy()


def generate(
    decoder: SemanticDecoder,
    phones: np.ndarray,
    bert: np.ndarray,
    prompts: np.ndarray,
    rng: np.random.Generator,
    *,
    top_k: int = 15,
    top_p: float = 1.0,
    temperature: float = 1.0,
    penalty: float = 1.35,
    limit: int = MAX_TOKENS,
) -> np.ndarray:
    """The tokens [at most `limit`] int64 of the phonemes; phones, bert, prompts: see `SemanticDecoder.prefill`.

    top_k, top_p, temperature: see `probabilities`; penalty: see `penalised`. Decoding stops where the end token is
    drawn or has the highest score.
    """
    logits, tokens = decoder.prefill(phones, bert, prompts), list(prompts)
    end = len(logits) - 1
    while len(tokens) < len(prompts) + limit:
        if len(tokens) < len(prompts) + MIN_TOKENS:
            logits = logits[:end]
        scores = penalised(logits, tokens, penalty)
        chances = probabilities(scores, top_k, top_p, temperature)
        token = int(np.argmax(chances / rng.standard_exponential(len(chances))))  # draws with these probabilities
        if end in (token, scores.argmax()):
            break
        tokens.append(token)
        logits = decoder.step(token)
    return np.array(tokens[len(prompts) :], np.int64)


def penalised(logits: np.ndarray, tokens: Collection[int], penalty: float) -> np.ndarray:
    """Logits [V] with the repetition penalty on earlier tokens (Keskar et al., CTRL, 2019)."""
    scores, repeated = logits.astype(np.float64), np.unique(np.array(tokens, np.int64))
    scores[repeated] *= np.where(scores[repeated] < 0, penalty, 1 / penalty)
    return scores


def probabilities(scores: np.ndarray, top_k: int, top_p: float, temperature: float) -> np.ndarray:
    """The probability [V] with which each token is drawn, from scores [V].

    top_p: keeps the likeliest tokens that have this probability together, at least one (Holtzman et al., 2020).
    temperature: divides the scores after that, so that top_p does not depend on it. top_k: keeps so many at most.
    """
    scores = scores.copy()
    if top_p < 1:
        order = np.argsort(-scores, kind="stable")
        beyond = _softmax(scores[order]).cumsum() > top_p
        scores[order[1:][beyond[1:]]] = -np.inf
    scores /= temperature
    scores[scores < np.sort(scores)[-min(top_k, len(scores))]] = -np.inf
    return _softmax(scores)


def _softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()
