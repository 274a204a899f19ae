"""The Deep Interest Evolution Network in PyTorch, with the tensor names of the released TensorFlow checkpoint.

Zhou et al., "Deep Interest Evolution Network for Click-Through Rate Prediction", AAAI 2019. A first GRU reads the
history and extracts an interest per step; attention tells how much each has to do with the candidate; a second GRU,
whose update gate the attention scales (AUGRU), follows how that interest evolves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebooks.dien.network.released import load_released

__all__ = ["CODED", "DIEN", "EVOLUTIONS", "PAPER", "Config", "load_released"]
CODED, PAPER = "coded", "paper"
EVOLUTIONS = (CODED, PAPER, "gru", "sum")
MASKED = float(1 - 2**32)  # the authors' minus infinity
INPUTS = ("uid", "mid", "cat", "mid_his", "cat_his", "mask", "seq_len")


@dataclass(frozen=True)
class Config:
    """Sizes, and which of the network's forms.

    evolution: "coded" is what the authors' program computes and the released checkpoint needs, u' = (1 - a) u,
    h' = u' h + (1 - u') c; "paper" is what the paper prints, h' = (1 - a (1 - u)) h + a (1 - u) c in the same
    letters, an option for training; "gru" leaves the attention out and "sum" the second GRU (ablations).
    independent: a row's score depends on that row alone: Dice uses statistics folded in training, and padding does
    not count in the sum over the history. False computes as the authors do, with the statistics of the batch.
    """

    n_uid: int
    n_mid: int
    n_cat: int
    embedding: int = 18
    query: int = 36
    attention: tuple[int, int] = (80, 40)
    layers: tuple[int, int] = (200, 80)
    auxiliary: tuple[int, int] = (100, 50)
    evolution: str = CODED
    independent: bool = False

    def __post_init__(self) -> None:
        if self.evolution not in EVOLUTIONS:
            raise ValueError(f"evolution is {self.evolution!r}: choose one of {', '.join(EVOLUTIONS)}.")

    @property
    def item(self) -> int:
        """Width of an item: movie or book, and category."""
        return 2 * self.embedding

    @property
    def features(self) -> int:
        """Width of what the last layers read: user, item, sum of the history, item times sum, final state."""
        return self.embedding + self.item * (3 if self.evolution == "sum" else 4)

    @classmethod
    def of(cls, tensors: Mapping[str, np.ndarray | Tensor], **options) -> Config:
        """The configuration whose network has tensors of these shapes; `options` are the other fields."""

        def shape(name: str) -> tuple[int, ...]:
            return tuple(tensors[name].shape)

        return cls(
            *(shape(f"{name}_embedding_var")[0] for name in ("uid", "mid", "cat")),
            embedding=shape("uid_embedding_var")[1],
            query=shape("dien/f11_1/bias")[0],
            attention=(shape("dien/f1_att1_1/bias")[0], shape("dien/f2_att1_1/bias")[0]),
            layers=(shape("dien/fcn/f1/bias")[0], shape("dien/fcn/f2/bias")[0]),
            auxiliary=tuple(shape(f"dien/aux_loss/aux_net/f{i}gru/bias")[0] for i in (1, 2)),
            **options,
        )


class DIEN(nn.Module):
    """The network. Its state dict has the names and shapes of the released checkpoint (kernels [in, out]).

    Parameters are kept flat under those names, "dien/gru1/gru_cell/gates/kernel" and so on, so that nothing has
    to be renamed. With `independent`, four more hold Dice's folded statistics.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width, first = config.item, config.query
        for name, rows in (("uid", config.n_uid), ("mid", config.n_mid), ("cat", config.n_cat)):
            self._add(f"{name}_embedding_var", torch.randn(rows, config.embedding) * 0.05)
        self._dense("dien/gru1/gru_cell/gates", 2 * width, 2 * width, bias=1.0)
        self._dense("dien/gru1/gru_cell/candidate", 2 * width, width)
        self._normalisation("dien/aux_loss/aux_net/bn1gru", 2 * width)
        self._stack("dien/aux_loss/aux_net/f{}gru", (2 * width, *config.auxiliary, 2))
        self._dense("dien/f11_1", width, first)
        self._add("dien//prelu_", torch.full((first,), 0.1))
        self._stack("dien/f{}_att1_1", (4 * width, *config.attention, 1))
        if config.evolution != "sum":
            self._dense("dien/gru2/gates", 2 * width, 2 * width, bias=1.0)
            self._dense("dien/gru2/candidate", 2 * width, width)
        self._normalisation("dien/fcn/bn1", config.features)
        self._stack("dien/fcn/f{}", (config.features, *config.layers, 2))
        for i, size in enumerate(config.layers, 1):
            self._add(f"dien/fcn/dice_{i}/alphadice_{i}", torch.zeros(size))
            if config.independent:
                self.register_buffer(f"dien/fcn/dice_{i}/moving_mean", torch.zeros(size))
                self.register_buffer(f"dien/fcn/dice_{i}/moving_variance", torch.ones(size))

    def forward(self, uid, mid, cat, mid_his, cat_his, mask, seq_len) -> tuple[Tensor, Tensor]:
        """Probabilities [B, 2], column 0 a click, and the attention [B, T] over the history.

        uid, mid, cat: int [B]; mid_his, cat_his: int [B, T], padded on the right with 0; mask: float [B, T], 1 for
        what is there; seq_len: int [B].
        """
        stages = self.stages(uid, mid, cat, mid_his, cat_his, mask, seq_len)
        return stages["y_hat"], stages["att_alphas"]

    def stages(self, uid, mid, cat, mid_his, cat_his, mask, seq_len) -> dict[str, Tensor]:
        """Everything on the way from ids to probabilities, by the name it has in the authors' program."""
        history = self.items(mid_his, cat_his)
        interests = self.extract(history, seq_len)
        return {"item_his_eb": history, "gru1_out": interests} | self.judge(
            self["uid_embedding_var"][uid], self.items(mid, cat), history, interests, mask, seq_len
        )

    def items(self, mid: Tensor, cat: Tensor) -> Tensor:
        """Embeddings [..., 36] of items: movie or book, then category."""
        return torch.cat([self["mid_embedding_var"][mid], self["cat_embedding_var"][cat]], -1)

    def extract(self, history: Tensor, seq_len: Tensor) -> Tensor:
        """Interest extraction: the states [B, T, 36] of the first GRU, 0 where the history has ended."""
        return self.recur("dien/gru1/gru_cell", history) * inside(history, seq_len)

    def judge(self, user: Tensor, item: Tensor, history: Tensor, interests: Tensor, mask: Tensor, seq_len: Tensor):
        """Attention, interest evolution and the last layers, for one candidate item [B, 36] a row."""
        attention = self.attend(item, interests, mask)
        counted = history * mask[..., None] if self.config.independent else history
        total = counted.sum(1)
        features = [user, item, total, item * total]
        stages = {"item_eb": item, "att_alphas": attention}
        if self.config.evolution != "sum":
            gate = None if self.config.evolution == "gru" else attention
            evolved = self.recur("dien/gru2", interests, gate, self.config.evolution)
            features.append(self.final(evolved, seq_len))
            stages |= {"gru2_out": evolved * inside(history, seq_len), "gru2_final": features[-1]}
        x = torch.cat(features, -1)
        stages["fcn_in"] = x
        x = self._normalise("dien/fcn/bn1", x)
        for i in (1, 2):
            x = stages[f"dice{i}"] = self._dice(i, self._linear(f"dien/fcn/f{i}", x))
        return stages | {"y_hat": self._linear("dien/fcn/f3", x).softmax(-1) + 1e-8}

    def attend(self, item: Tensor, interests: Tensor, mask: Tensor) -> Tensor:
        """How much each step [B, T] has to do with the candidate; sums to 1 over what the mask [B, T] keeps."""
        query = self.query(item)[:, None].expand_as(interests)
        x = torch.cat([query, interests, query - interests, query * interests], -1)
        return self.weigh(self._linear("dien/f1_att1_1", x).sigmoid(), mask)

    def query(self, item: Tensor) -> Tensor:
        """What the candidate [B, 36] asks of the interests, [B, 36]."""
        query = self._linear("dien/f11_1", item)
        return F.relu(query) - self["dien//prelu_"] * F.relu(-query)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        """From the first attention layer's result [B, T, 80] to weights [B, T]."""
        score = self._linear("dien/f3_att1_1", self._linear("dien/f2_att1_1", x).sigmoid())[..., 0]
        return torch.where(mask > 0, score, MASKED).softmax(-1)

    def final(self, evolved: Tensor, seq_len: Tensor) -> Tensor:
        """The state [B, 36] at seq_len; what follows it is padding."""
        last = inside(evolved, seq_len) - inside(evolved, seq_len - 1)
        return (evolved * last).sum(1)

    def auxiliary_loss(self, interests: Tensor, history: Tensor, others: Tensor, mask: Tensor) -> Tensor:
        """Mean loss of telling, from each interest, the item that came next from one that did not (training only).

        interests, history, others (items [B, T, 36] that were not chosen): [B, T, 36]; mask [B, T].
        """
        states, mask = interests[:, :-1], mask[:, 1:]
        pairs = torch.stack([torch.cat([states, items[:, 1:]], -1) for items in (history, others)])
        x = self._normalise("dien/aux_loss/aux_net/bn1gru", pairs, mask[None].expand(pairs.shape[:-1]))
        for i in (1, 2):
            x = self._linear(f"dien/aux_loss/aux_net/f{i}gru", x).sigmoid()
        chosen = self._linear("dien/aux_loss/aux_net/f3gru", x).softmax(-1)[..., 0] + 1e-8
        loss = chosen[0].log() + (1 - chosen[1]).clamp_min(1e-12).log()
        return -(loss * mask).mean()

    def __getitem__(self, name: str) -> Tensor:
        return getattr(self, name)

    def recur(self, name: str, inputs: Tensor, attention: Tensor | None = None, form: str = CODED) -> Tensor:
        """States [B, T, n] of a GRU (AUGRU with `attention` [B, T]) from the zero state, step by step.

        TensorFlow's cell: gates in the order reset, update; the reset comes before the matrix product. It is
        written the way OpenVINO's fusion of recurrent cells looks for.
        """
        gates, gates_bias = self[f"{name}/gates/kernel"], self[f"{name}/gates/bias"]
        candidate, candidate_bias = self[f"{name}/candidate/kernel"], self[f"{name}/candidate/bias"]
        state = inputs.new_zeros(inputs.shape[0], inputs.shape[2])
        weights = [None] * inputs.shape[1] if attention is None else torch.split(attention, 1, 1)
        states = []
        for x, a in zip(torch.split(inputs, 1, 1), weights, strict=True):
            x = x.squeeze(1)
            reset, update = torch.sigmoid(torch.cat([x, state], 1) @ gates + gates_bias).split(inputs.shape[2], 1)
            new = torch.tanh(torch.cat([x, reset * state], 1) @ candidate + candidate_bias)
            if a is not None:
                update = (1 - a) * update if form == CODED else 1 - a * (1 - update)
            state = update * state + (1 - update) * new
            states.append(state)
        return torch.stack(states, 1)

    def _dice(self, i: int, x: Tensor) -> Tensor:
        """Dice: a soft switch between x and alpha x, at the mean of the batch, or the folded one."""
        name = f"dien/fcn/dice_{i}"
        alpha = self[f"{name}/alphadice_{i}"]
        if self.config.independent and not self.training:
            mean, variance = self[f"{name}/moving_mean"], self[f"{name}/moving_variance"]
        else:
            mean = x.mean(0)
            variance = ((x - mean) ** 2).mean(0)
            if self.config.independent:
                self._track(name, mean, variance)
        p = torch.sigmoid((x - mean) / (torch.sqrt(variance + 1e-9) + 1e-9))
        return alpha * (1 - p) * x + p * x

    def _normalise(self, name: str, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Batch normalisation over the last axis.

        In training the statistics are those of what the mask keeps, chosen items and others together: of each
        kind alone, or with padding, they would tell the two apart by themselves.
        """
        mean, variance = self[f"{name}/moving_mean"], self[f"{name}/moving_variance"]
        if self.training:
            kept = x.reshape(-1, x.shape[-1]) if mask is None else x[mask > 0]
            mean, variance = kept.mean(0), kept.var(0, unbiased=False)
            self._track(name, mean, variance)
        return (x - mean) * torch.rsqrt(variance + 1e-3) * self[f"{name}/gamma"] + self[f"{name}/beta"]

    @torch.no_grad()
    def _track(self, name: str, mean: Tensor, variance: Tensor) -> None:
        self[f"{name}/moving_mean"].lerp_(mean, 0.01)
        self[f"{name}/moving_variance"].lerp_(variance, 0.01)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self[f"{name}/kernel"] + self[f"{name}/bias"]

    def _add(self, name: str, values: Tensor) -> None:
        self.register_parameter(name, nn.Parameter(values))

    def _dense(self, name: str, inputs: int, outputs: int, bias: float = 0.0) -> None:
        self._add(f"{name}/kernel", nn.init.xavier_uniform_(torch.empty(inputs, outputs)))
        self._add(f"{name}/bias", torch.full((outputs,), bias))

    def _stack(self, name: str, sizes: tuple[int, ...]) -> None:
        for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:], strict=False), 1):
            self._dense(name.format(i), inputs, outputs)

    def _normalisation(self, name: str, size: int) -> None:
        self._add(f"{name}/gamma", torch.ones(size))
        self._add(f"{name}/beta", torch.zeros(size))
        self.register_buffer(f"{name}/moving_mean", torch.zeros(size))
        self.register_buffer(f"{name}/moving_variance", torch.ones(size))


def inside(history: Tensor, seq_len: Tensor) -> Tensor:
    """1 [B, T, 1] for the steps before seq_len [B], 0 after."""
    steps = torch.arange(history.shape[1])
    return (steps[None] < seq_len[:, None]).to(history.dtype)[..., None]
