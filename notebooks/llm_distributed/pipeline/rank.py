"""What a rank runs: its share of the model, compiled, with the logits of its part of the vocabulary."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import openvino as ov

from .graph import MODEL_XML, AllReduce, parallelise
from .group import Group
from .shares import Share, mismatch


class Rank:
    """One rank's share. All ranks of a group call the same methods with the same arguments at the same time."""

    def __init__(self, folder: str | Path, group: Group, device: str = "CPU", **properties) -> None:
        """folder: IR and share.json of this rank. properties: OpenVINO's.

        Raises ValueError for a folder without a share, for weights that are not those that were cut, and where the
        ranks hold shares of different models.
        """
        self.share, self.group = Share.read(folder), group
        check(Path(folder), self.share, group)
        core = ov.Core()
        model = core.read_model(Path(folder) / MODEL_XML)
        self.weights_bytes = sum(node.get_byte_size() for node in model.get_ops() if node.get_type_name() == "Constant")
        AllReduce.group = group
        if group.size > 1:
            parallelise(model, *self.share.vocabulary)
        self._request = core.compile_model(model, device, properties).create_infer_request()
        self.past = 0  # tokens in the cache

    def prefill(self, ids: np.ndarray) -> np.ndarray:
        """Forget all, and read int ids [1, tokens]; returns logits [1, tokens, own part of the vocabulary]."""
        self._request.reset_state()
        self.past = 0
        return self.extend(ids)

    def extend(self, ids: np.ndarray) -> np.ndarray:
        """Read further ids [1, tokens]; returns logits as above, a view that the next call overwrites."""
        tokens = ids.shape[1]
        inputs = {
            "input_ids": ids.astype(np.int64),
            "attention_mask": np.ones((1, self.past + tokens), np.int64),
            "position_ids": np.arange(self.past, self.past + tokens)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.infer(inputs)
        if self.group.failure:
            raise self.group.failure
        self.past += tokens
        return self._request.get_output_tensor(0).data

    def best(self, logits: np.ndarray) -> int:
        """The token with the largest logit over all ranks, after the last token of `logits`.

        Each rank sends its best token and that token's logit: 16 bytes in place of its part of the logits.
        """
        last = logits[0, -1]
        own = int(last.argmax())
        offers = self.group.all_gather(np.array([last[own], self.share.vocabulary[0] + own], np.float64))
        return int(max(offers, key=lambda offer: offer[0])[1])  # the lowest token where logits are equal

    def stream(self, ids: np.ndarray, count: int, ends: Collection[int] = ()) -> Iterator[int]:
        """Greedy decoding after a prompt [1, tokens]: at most `count` tokens, up to and with one of `ends`."""
        logits = self.prefill(ids)
        for i in range(count):
            token = self.best(logits)
            yield token
            if token in ends:
                return
            if i < count - 1:
                logits = self.extend(np.array([[token]]))

    def log_likelihoods(self, ids: np.ndarray) -> np.ndarray:
        """The natural logarithm of the probability of each token after the first; ids [1, n], result [n - 1].

        Each rank sends, for each token, the largest of its logits, the sum of the exponentials below it, and the logit
        of the next token if it holds that one.
        """
        logits = self.prefill(ids)[0, :-1].astype(np.float64)  # [n - 1, own part of the vocabulary]
        first, end = self.share.vocabulary
        largest = logits.max(-1)
        sums = np.exp(logits - largest[:, None]).sum(-1)
        targets = ids[0, 1:]
        held = (first <= targets) & (targets < end)
        own = np.where(held, logits[np.arange(len(targets)), np.where(held, targets - first, 0)], 0.0)
        parts = np.stack(self.group.all_gather(np.stack([largest, sums, own])))  # [ranks, 3, n - 1]
        top = parts[:, 0].max(0)
        return parts[:, 2].sum(0) - top - np.log((parts[:, 1] * np.exp(parts[:, 0] - top)).sum(0))

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """The logits [1, tokens, vocabulary] of a prompt, from all ranks."""
        own = self.prefill(ids)
        widths = [int(width[0]) for width in self.group.all_gather(np.array([own.shape[-1]]))]
        padded = np.zeros((*own.shape[:-1], max(widths)), own.dtype)  # ranks send arrays of one shape
        padded[..., : own.shape[-1]] = own
        parts = self.group.all_gather(padded)
        return np.concatenate([part[..., :width] for part, width in zip(parts, widths, strict=True)], -1)

    def cache_bytes(self) -> int:
        """The size of the keys and values that this rank holds."""
        return sum(state.state.byte_size for state in self._request.query_state())


def check(folder: Path, share: Share, group: Group) -> None:
    """Compare weights with what was cut, and shares with those of the other ranks. Raises ValueError."""
    with (folder / MODEL_XML).with_suffix(".bin").open("rb") as file:
        damaged = hashlib.file_digest(file, "sha256").hexdigest() != share.weights
    own = json.dumps([asdict(share), damaged]).encode().ljust(1024)
    shares = []
    for rank, sent in enumerate(group.all_gather(np.frombuffer(own, np.uint8))):
        content, damaged = json.loads(sent.tobytes())
        if damaged:
            raise ValueError(
                f"The weights of rank {rank} are not those that were cut: their sha256 differs. Cut again."
            )
        shares.append(Share.of(content))
    if problem := mismatch(shares):
        raise ValueError(f"The shares do not fit: {problem}. Give each rank its folder of one cut.")
