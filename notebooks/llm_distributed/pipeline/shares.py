"""Who holds what: the plan that cuts a language model of the Llama family into shares, one for each rank.

A rank is one of the processes that run the model together. Its share of a Llama is a narrower Llama: some of the
attention heads with their keys and values, some columns of the MLP, and some rows of the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

SHARE_JSON = "share.json"
FAMILY = ("llama", "mistral", "qwen2")  # kinds of models whose weights are cut as described here


@dataclass(frozen=True)
class Share:
    """What a rank holds, as half-open ranges [first, end). source: what was cut; weights: sha256 of its .bin file."""

    rank: int
    ranks: int
    heads: tuple[int, int]  # of queries
    kv_heads: tuple[int, int]  # of keys and values
    columns: tuple[int, int]  # of the MLP
    vocabulary: tuple[int, int]  # tokens whose embeddings and logits it holds
    source: str = ""
    weights: str = ""

    @classmethod
    def read(cls, folder: str | Path) -> Share:
        """The share that an IR folder holds. Raises ValueError for a folder without one."""
        try:
            return cls.of(json.loads((Path(folder) / SHARE_JSON).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{folder} holds no share of a model ({error}). Give a folder that was cut.") from error

    @classmethod
    def of(cls, content: Mapping) -> Share:
        """The share that was written as JSON."""
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in content.items()})

    def write(self, folder: str | Path) -> None:
        (Path(folder) / SHARE_JSON).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    def config(self, config: Mapping) -> dict:
        """The config.json of this share, as a model of its own, made from that of the whole model."""
        size = {
            "head_dim": head_size(config),  # explicit: transformers would divide the hidden size by fewer heads
            "num_attention_heads": length(self.heads),
            "num_key_value_heads": length(self.kv_heads),
            "intermediate_size": length(self.columns),
            "vocab_size": length(self.vocabulary),
        }
        special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))  # may be tokens of another rank
        return dict(config) | size | special

    def cut(self, name: str, config: Mapping) -> tuple[int, tuple[int, int]] | None:
        """The axis along which a tensor of the checkpoint is cut, and the range to keep; None: the rank needs all."""
        size = head_size(config)
        heads, kv_heads = (tuple(size * edge for edge in edges) for edges in (self.heads, self.kv_heads))
        kinds = {
            "q_proj": (0, heads),
            "k_proj": (0, kv_heads),
            "v_proj": (0, kv_heads),
            "o_proj": (1, heads),
            "gate_proj": (0, self.columns),
            "up_proj": (0, self.columns),
            "down_proj": (1, self.columns),
            "embed_tokens": (0, self.vocabulary),
            "lm_head": (0, self.vocabulary),
        }
        layer = name.split(".")[-2]
        if name.endswith(".bias") and layer in ("o_proj", "down_proj"):
            raise ValueError(f"{name}: a bias after a sum would be added once for each rank. This is not supported.")
        return kinds.get(layer)


def plan(config: Mapping, ranks: int, multiple: int = 64) -> list[Share]:
    """The shares of `ranks` processes, with about the same number of parameters each.

    config: the content of config.json. multiple: MLP columns are cut at multiples of it, so that groups of compressed
    weights stay whole. Keys and values are cut by head. With more ranks than such heads, several ranks hold the same
    keys and values and divide the queries that read them. Raises ValueError for another kind of model and for more
    ranks than heads.
    """
    if (kind := config.get("model_type")) not in FAMILY:
        raise ValueError(f"A model of the kind {kind!r} is not cut here. Take one of: {', '.join(FAMILY)}.")
    heads, columns = config["num_attention_heads"], config["intermediate_size"]
    kv_heads = config.get("num_key_value_heads") or heads
    if not 1 <= ranks <= heads:
        raise ValueError(f"{ranks} ranks cannot share {heads} attention heads. Take 1 to {heads} ranks.")
    if columns < ranks * multiple:
        raise ValueError(
            f"{columns} columns are too few for {ranks} ranks in multiples of {multiple}. Take fewer ranks."
        )
    held = _heads(heads, kv_heads, ranks)
    hidden, size = config["hidden_size"], head_size(config)
    attention = [2 * hidden * size * (length(own) + length(kv)) for own, kv in held]  # parameters of a layer
    average = (sum(attention) + 3 * hidden * columns) / ranks
    wanted = [max(0.0, (average - own) / (3 * hidden)) for own in attention]
    column_edges = _edges(columns // multiple, ranks, wanted, multiple)
    column_edges[-1] = columns
    vocabulary_edges = _edges(config["vocab_size"], ranks)
    return [
        Share(rank, ranks, *held[rank], *(tuple(edges[rank : rank + 2]) for edges in (column_edges, vocabulary_edges)))
        for rank in range(ranks)
    ]


def _heads(heads: int, kv_heads: int, ranks: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """For each rank its heads of queries, and the heads of keys and values that these read."""
    readers = heads // kv_heads  # heads of queries that read one head of keys and values
    if ranks <= kv_heads:
        return [((a * readers, b * readers), (a, b)) for a, b in pairwise(_edges(kv_heads, ranks))]
    held = []
    for kv, (first, end) in enumerate(pairwise(_edges(ranks, kv_heads))):  # the ranks that hold this head
        edges = [kv * readers + edge for edge in _edges(readers, end - first)]
        held += [(own, (kv, kv + 1)) for own in pairwise(edges)]
    return held


def _edges(total: int, parts: int, wanted: Sequence[float] | None = None, multiple: int = 1) -> list[int]:
    """Where to cut `total` into parts of at least 1, equal or of the `wanted` sizes; the result times `multiple`."""
    wanted = [total / parts] * parts if wanted is None else [size / multiple for size in wanted]
    edges, reached, scale = [0], 0.0, total / sum(wanted)
    for part, size in enumerate(wanted, 1):
        reached += size * scale
        edges.append(min(max(int(reached + 0.5), edges[-1] + 1), total - parts + part))
    return [edge * multiple for edge in edges]


def head_size(config: Mapping) -> int:
    """Numbers in a head of queries, keys or values."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def length(edges: tuple[int, int]) -> int:
    return edges[1] - edges[0]


def mismatch(shares: Sequence[Share]) -> str:
    """Why the shares of ranks 0, 1, ... are not those of one model; empty if they are."""
    for rank, share in enumerate(shares):
        if share.source != shares[0].source or share.ranks != shares[0].ranks:
            return f"rank {rank} holds a share of another model or of another cut than rank 0"
        if share.rank != rank or share.ranks != len(shares):
            return f"rank {rank} of {len(shares)} holds share {share.rank} of {share.ranks}"
    return ""
