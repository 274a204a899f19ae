"""Run an exported, stateful language model token by token, and measure its perplexity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import openvino as ov

TEXT = Path(__file__).parent / "text"
# For parity: by default the CPU may compute in bf16 and keeps its cache in f16.
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def model_inputs(token_ids: np.ndarray, past: int = 0) -> dict[str, np.ndarray]:
    """The inputs of an exported language model for int token_ids [batch, tokens] after `past` cached tokens."""
    batch, tokens = token_ids.shape
    return {
        "input_ids": token_ids.astype(np.int64),
        "attention_mask": np.ones((batch, past + tokens), np.int64),
        "position_ids": np.arange(past, past + tokens)[None].repeat(batch, 0),
        "beam_idx": np.arange(batch, dtype=np.int32),
    }


class Session:
    """A compiled model and its KV cache, which lives inside the model as state."""

    def __init__(self, model: ov.Model | Path, device: str = "CPU", **properties: str) -> None:
        self.request = ov.Core().compile_model(model, device, properties).create_infer_request()
        self.past = 0

    def prefill(self, token_ids: np.ndarray) -> np.ndarray:
        """Empty the cache and read a prompt [batch, tokens]; returns the first output."""
        self.request.reset_state()
        self.past = 0
        return self.extend(token_ids)

    def extend(self, token_ids: np.ndarray) -> np.ndarray:
        """Read further tokens [batch, tokens]; returns the first output: logits, or token ids (SelectGreedy).

        The array is a view of the model's memory: copy what must outlive the next call.
        """
        self.request.infer(model_inputs(token_ids, self.past))
        self.past += token_ids.shape[1]
        return self.request.get_output_tensor(0).data

    def stream(self, token_ids: np.ndarray, count: int) -> Iterator[np.ndarray]:
        """Greedy decoding: yields the `count` tokens [batch] that follow the prompt, without a stop token."""
        output = self.prefill(token_ids)
        for i in range(count):
            last = output[:, -1]
            token = last.argmax(-1) if last.ndim == 2 else last.copy()
            yield token
            if i < count - 1:
                output = self.extend(token[:, None])

    def generate(self, token_ids: np.ndarray, count: int) -> np.ndarray:
        """The tokens [batch, count] of `stream`."""
        return np.stack(list(self.stream(token_ids, count)), 1)


def tokenize(folder: Path, text: str) -> np.ndarray:
    """Token ids [1, tokens] of `text/<text>.txt`, with the tokenizer of an IR or transformers folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return np.array([tokenizer((TEXT / f"{text}.txt").read_text(encoding="utf-8"))["input_ids"]])


def perplexity(logits_of: Callable[[np.ndarray], np.ndarray], token_ids: np.ndarray, window: int = 512) -> float:
    """exp of the mean negative log-likelihood (nats) of each next token, in windows read from an empty cache.

    logits_of: token ids [1, n] -> logits [1, n, vocabulary]; token_ids: [1, tokens].
    """
    losses = []
    for start in range(0, token_ids.shape[1] - 1, window):
        ids = token_ids[:, start : start + window]
        logits = logits_of(ids)[0, :-1].astype(np.float32)
        logits = logits - logits.max(-1, keepdims=True)
        log_sums = np.log(np.exp(logits).sum(-1, dtype=np.float64))
        losses.append(log_sums - logits[np.arange(len(logits)), ids[0, 1:]])
    return float(np.exp(np.concatenate(losses).mean()))
