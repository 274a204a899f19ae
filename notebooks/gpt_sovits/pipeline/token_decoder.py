"""The semantic tokens of a sentence, with OpenVINO and numpy: the decoder with its cache, and how tokens are drawn.

X: phones, Y: tokens of the reference, V: tokens and the last, which ends.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import openvino as ov

LIMIT = 1500  # tokens: a minute
FIRST = 11  # tokens that no sentence has less than
PARTS = ("text_embeddings", "audio_embeddings", "language")


class SemanticDecoder:
    """The converted decoder of tokens, one sentence at a time. Its KV cache is inside the model."""

    def __init__(self, folder: str | Path, device: str = "CPU", **properties: str) -> None:
        files = [Path(folder) / f"openvino_{part}_model.xml" for part in PARTS]
        models = [ov.Core().compile_model(file, device, properties) for file in files]
        self.text, self.audio, self.language = (model.create_infer_request() for model in models)
        self.cached = self.position = 0

    def prefill(self, phones: np.ndarray, bert: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """Forget the sentence before and read phones [X] and the reference's tokens prompts [Y], both int64.

        bert: [1024, X] float32, the features of every phone. Returns the logits [V] of the first token.
        """
        self.language.reset_state()
        self.cached = self.position = 0
        self.text.infer({"phones": phones[None], "bert": bert[None]})
        rows = [self.text.get_output_tensor(0).data]
        if len(prompts):
            rows.append(self._embed(prompts))
        return self._read(np.concatenate(rows, 1), len(phones))

    def step(self, token: int) -> np.ndarray:
        """Logits [V] of the token that follows `token`."""
        return self._read(self._embed(np.array([token], np.int64)), 0)

    def _embed(self, tokens: np.ndarray) -> np.ndarray:
        places = np.arange(self.position, self.position + len(tokens))
        self.position += len(tokens)
        self.audio.infer({"tokens": tokens[None], "position_ids": places[None]})
        return self.audio.get_output_tensor(0).data

    def _read(self, embeddings: np.ndarray, text: int) -> np.ndarray:
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
    limit: int = LIMIT,
) -> np.ndarray:
    """The tokens [at most `limit`] int64 that say the phones; phones, bert, prompts: see `SemanticDecoder.prefill`.

    top_k, top_p, temperature, penalty: see `probabilities`. It ends where the end is drawn or the likeliest of all.
    """
    logits, said = decoder.prefill(phones, bert, prompts), list(prompts)
    end = len(logits) - 1
    while len(said) < len(prompts) + limit:
        if len(said) < len(prompts) + FIRST:
            logits = logits[:end]
        scores = penalised(logits, said, penalty)
        odds = probabilities(scores, top_k, top_p, temperature)
        token = int(np.argmax(odds / rng.standard_exponential(len(odds))))  # draws by the odds
        if end in (token, scores.argmax()):
            break
        said.append(token)
        logits = decoder.step(token)
    return np.array(said[len(prompts) :], np.int64)


def penalised(logits: np.ndarray, said: Collection[int], penalty: float) -> np.ndarray:
    """Logits [V] with those of tokens that were said made less likely (Keskar et al., CTRL, 2019)."""
    scores, again = logits.astype(np.float64), np.unique(np.array(said, np.int64))
    scores[again] *= np.where(scores[again] < 0, penalty, 1 / penalty)
    return scores


def probabilities(scores: np.ndarray, top_k: int, top_p: float, temperature: float) -> np.ndarray:
    """How likely each token is to be drawn, [V], by scores [V].

    top_p: of the likeliest only those that have this probability together, at least one (Holtzman et al., 2020).
    temperature: below 1 favours what is likely anyway, but only then: top_p does not see it. top_k: how many at most.
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
    odds = np.exp(scores - scores.max())
    return odds / odds.sum()
