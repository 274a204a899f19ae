"""The Deep Interest Evolution Network in PyTorch, with the tensor names of the released TensorFlow checkpoint.

Zhou et al., "Deep Interest Evolution Network for Click-Through Rate Prediction", AAAI 2019. A first GRU reads the
history and extracts an interest per step. Attention weighs each interest by its relevance to the candidate item. A
second GRU, whose update gate the attention scales (AUGRU), follows how the relevant interest evolves.

In the shape comments, `rows` is the batch, `steps` the padded length of the history, `width` that of an item (36).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

CODED, PAPER = "coded", "paper"
EVOLUTIONS = (CODED, PAPER, "gru", "sum")
MASKED_SCORE = float(1 - 2**32)  # what the authors use in place of minus infinity
INPUTS = ("uid", "mid", "cat", "mid_his", "cat_his", "mask", "seq_len")


@dataclass(frozen=True)
class Config:
    """Sizes of the layers, and the form of the network.

    evolution: "coded" is what the authors' program computes and the released checkpoint needs, u' = (1 - a) u,
    h' = u' h + (1 - u') c; "paper" is what the paper prints, h' = (1 - a (1 - u)) h + a (1 - u) c in the same
    letters, an option for training; "gru" leaves the attention out and "sum" the second GRU (ablations).
    independent: a row's score depends on that row alone, because Dice uses the moving statistics of training and
    padding does not count in the sum over the history. False computes as the authors do, with batch statistics.
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
    def item_width(self) -> int:
        """Width of an item's embedding: that of the movie or book, then that of its category."""
        return 2 * self.embedding

    @property
    def feature_width(self) -> int:
        """Width of the last layers' input: user, item, sum of the history, item times sum, final state."""
        return self.embedding + self.item_width * (3 if self.evolution == "sum" else 4)

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

    Parameters are registered flat under those names ("dien/gru1/gru_cell/gates/kernel" ...), so nothing is renamed
    on loading. With `independent`, four buffers more hold the moving statistics of Dice.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width = config.item_width
        for name, count in (("uid", config.n_uid), ("mid", config.n_mid), ("cat", config.n_cat)):
            self._add_parameter(f"{name}_embedding_var", torch.randn(count, config.embedding) * 0.05)
        self._add_dense("dien/gru1/gru_cell/gates", 2 * width, 2 * width, bias=1.0)
        self._add_dense("dien/gru1/gru_cell/candidate", 2 * width, width)
        self._add_batch_norm("dien/aux_loss/aux_net/bn1gru", 2 * width)
        self._add_dense_stack("dien/aux_loss/aux_net/f{}gru", (2 * width, *config.auxiliary, 2))
        self._add_dense("dien/f11_1", width, config.query)
        self._add_parameter("dien//prelu_", torch.full((config.query,), 0.1))
        self._add_dense_stack("dien/f{}_att1_1", (4 * width, *config.attention, 1))
        if config.evolution != "sum":
            self._add_dense("dien/gru2/gates", 2 * width, 2 * width, bias=1.0)
            self._add_dense("dien/gru2/candidate", 2 * width, width)
        self._add_batch_norm("dien/fcn/bn1", config.feature_width)
        self._add_dense_stack("dien/fcn/f{}", (config.feature_width, *config.layers, 2))
        for i, size in enumerate(config.layers, 1):
            self._add_parameter(f"dien/fcn/dice_{i}/alphadice_{i}", torch.zeros(size))
            if config.independent:
                self.register_buffer(f"dien/fcn/dice_{i}/moving_mean", torch.zeros(size))
                self.register_buffer(f"dien/fcn/dice_{i}/moving_variance", torch.ones(size))

    def forward(self, uid, mid, cat, mid_his, cat_his, mask, seq_len) -> tuple[Tensor, Tensor]:
        """Probabilities [B, 2], column 0 a click, and the attention [B, T] over the history.

        uid, mid, cat: int [B]; mid_his, cat_his: int [B, T], padded on the right with 0; mask: float [B, T], 1 for
        an item and 0 for padding; seq_len: int [B].
        """
        stages = self.stages(uid, mid, cat, mid_his, cat_his, mask, seq_len)
        return stages["y_hat"], stages["att_alphas"]

    def stages(self, uid, mid, cat, mid_his, cat_his, mask, seq_len) -> dict[str, Tensor]:
        """Every intermediate result from ids to probabilities, by its name in the authors' program."""
        history = self.items(mid_his, cat_his)  # [rows, steps, width]
        interests = self.extract(history, seq_len)  # [rows, steps, width]
        user = self["uid_embedding_var"][uid]  # [rows, embedding]
        item = self.items(mid, cat)  # [rows, width]
        stages = {"item_his_eb": history, "gru1_out": interests}
        return stages | self.score(user, item, history, interests, mask, seq_len)

    def items(self, mid: Tensor, cat: Tensor) -> Tensor:
        """Embeddings [..., 36] of items: movie or book, then category."""
        return torch.cat([self["mid_embedding_var"][mid], self["cat_embedding_var"][cat]], -1)

    def extract(self, history: Tensor, seq_len: Tensor) -> Tensor:
        """Interest extraction: the states [B, T, 36] of the first GRU, 0 where the history has ended."""
        return self.gru("dien/gru1/gru_cell", history) * sequence_mask(history, seq_len)

    def score(
        self, user: Tensor, item: Tensor, history: Tensor, interests: Tensor, mask: Tensor, seq_len: Tensor
    ) -> dict[str, Tensor]:
        """Attention, interest evolution and the last layers, for one candidate item [B, 36] a row."""
        attention = self.attend(item, interests, mask)  # [rows, steps]
        counted = history * mask[..., None] if self.config.independent else history
        total = counted.sum(1)  # [rows, width]
        features = [user, item, total, item * total]
        stages = {"item_eb": item, "att_alphas": attention}
        if self.config.evolution != "sum":
            gate = None if self.config.evolution == "gru" else attention
            evolved = self.gru("dien/gru2", interests, gate, self.config.evolution)  # [rows, steps, width]
            last = self.last_state(evolved, seq_len)  # [rows, width]
            features.append(last)
            stages |= {"gru2_out": evolved * sequence_mask(history, seq_len), "gru2_final": last}
        x = torch.cat(features, -1)  # [rows, features]
        stages["fcn_in"] = x
        x = self._batch_norm("dien/fcn/bn1", x)
        for i in (1, 2):
            x = self._dice(i, self._dense(f"dien/fcn/f{i}", x))  # [rows, 200], then [rows, 80]
            stages[f"dice{i}"] = x
        stages["y_hat"] = self._dense("dien/fcn/f3", x).softmax(-1) + 1e-8  # [rows, 2]
        return stages

    def attend(self, item: Tensor, interests: Tensor, mask: Tensor) -> Tensor:
        """Attention [B, T] of the candidate over the interests; sums to 1 over the steps that the mask [B, T] keeps."""
        query = self.query(item)[:, None].expand_as(interests)  # [rows, steps, width]
        x = torch.cat([query, interests, query - interests, query * interests], -1)  # [rows, steps, 4 * width]
        return self.attention_weights(self._dense("dien/f1_att1_1", x).sigmoid(), mask)

    def query(self, item: Tensor) -> Tensor:
        """The query [B, 36] of the candidate [B, 36]: a dense layer and PReLU."""
        query = self._dense("dien/f11_1", item)
        return F.relu(query) - self["dien//prelu_"] * F.relu(-query)

    def attention_weights(self, x: Tensor, mask: Tensor) -> Tensor:
        """Weights [B, T] from the output of the first attention layer [B, T, 80]."""
        x = self._dense("dien/f2_att1_1", x).sigmoid()  # [rows, steps, 40]
        score = self._dense("dien/f3_att1_1", x)[..., 0]  # [rows, steps]
        return torch.where(mask > 0, score, MASKED_SCORE).softmax(-1)

    def last_state(self, evolved: Tensor, seq_len: Tensor) -> Tensor:
        """The state [B, 36] at the last step of each history; the states [B, T, 36] after it belong to padding."""
        last = sequence_mask(evolved, seq_len) - sequence_mask(evolved, seq_len - 1)  # [rows, steps, 1], one 1 a row
        return (evolved * last).sum(1)

    def auxiliary_loss(self, interests: Tensor, history: Tensor, others: Tensor, mask: Tensor) -> Tensor:
        """Mean loss of telling, from each interest, the item that came next from one that did not (training only).

        interests, history, others (items that were not chosen): [B, T, 36]; mask: [B, T].
        """
        states, mask = interests[:, :-1], mask[:, 1:]  # the interest at step t predicts the item at t + 1
        pairs = torch.stack(  # [2, rows, steps - 1, 2 * width]: chosen items, then others
            [torch.cat([states, items[:, 1:]], -1) for items in (history, others)]
        )
        x = self._batch_norm("dien/aux_loss/aux_net/bn1gru", pairs, mask[None].expand(pairs.shape[:-1]))
        for i in (1, 2):
            x = self._dense(f"dien/aux_loss/aux_net/f{i}gru", x).sigmoid()  # [2, rows, steps - 1, 100], then 50
        chosen = self._dense("dien/aux_loss/aux_net/f3gru", x).softmax(-1)[..., 0] + 1e-8  # [2, rows, steps - 1]
        loss = chosen[0].log() + (1 - chosen[1]).clamp_min(1e-12).log()  # [rows, steps - 1]
        return -(loss * mask).mean()

    def __getitem__(self, name: str) -> Tensor:
        return getattr(self, name)

    def gru(self, name: str, inputs: Tensor, attention: Tensor | None = None, form: str = CODED) -> Tensor:
        """States [B, T, n] of a GRU (AUGRU with `attention` [B, T]) from the zero state, step by step.

        TensorFlow's cell: gates in the order reset, update; the reset comes before the matrix product. It is
        written in the form that OpenVINO's fusion of recurrent cells looks for.
        """
        gates = self[f"{name}/gates/kernel"]  # [2 * width, 2 * width]
        gates_bias = self[f"{name}/gates/bias"]  # [2 * width]
        candidate = self[f"{name}/candidate/kernel"]  # [2 * width, width]
        candidate_bias = self[f"{name}/candidate/bias"]  # [width]
        state = inputs.new_zeros(inputs.shape[0], inputs.shape[2])  # [rows, width]
        weights = [None] * inputs.shape[1] if attention is None else torch.split(attention, 1, 1)
        states = []
        for x, a in zip(torch.split(inputs, 1, 1), weights, strict=True):  # a: [rows, 1]
            x = x.squeeze(1)  # [rows, width]
            reset, update = torch.sigmoid(torch.cat([x, state], 1) @ gates + gates_bias).split(inputs.shape[2], 1)
            new = torch.tanh(torch.cat([x, reset * state], 1) @ candidate + candidate_bias)  # [rows, width]
            if a is not None:
                update = (1 - a) * update if form == CODED else 1 - a * (1 - update)
            state = update * state + (1 - update) * new
            states.append(state)
        return torch.stack(states, 1)

    def _dice(self, i: int, x: Tensor) -> Tensor:
        """Dice, a smooth switch between x and alpha x at the mean of the batch, or at the moving mean."""
        name = f"dien/fcn/dice_{i}"
        alpha = self[f"{name}/alphadice_{i}"]  # [size]
        if self.config.independent and not self.training:
            mean, variance = self[f"{name}/moving_mean"], self[f"{name}/moving_variance"]  # [size]
        else:
            mean = x.mean(0)
            variance = ((x - mean) ** 2).mean(0)
            if self.config.independent:
                self._update_statistics(name, mean, variance)
        p = torch.sigmoid((x - mean) / (torch.sqrt(variance + 1e-9) + 1e-9))  # [rows, size]
        return alpha * (1 - p) * x + p * x

    def _batch_norm(self, name: str, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Batch normalisation over the last axis.

        Training uses the statistics of all entries that the mask keeps, chosen and other items together. Statistics
        of each kind alone, or with padding, would by themselves reveal which kind an item is.
        """
        mean, variance = self[f"{name}/moving_mean"], self[f"{name}/moving_variance"]  # [size]
        if self.training:
            valid = x.reshape(-1, x.shape[-1]) if mask is None else x[mask > 0]  # [entries, size]
            mean, variance = valid.mean(0), valid.var(0, unbiased=False)
            self._update_statistics(name, mean, variance)
        return (x - mean) * torch.rsqrt(variance + 1e-3) * self[f"{name}/gamma"] + self[f"{name}/beta"]

    @torch.no_grad()
    def _update_statistics(self, name: str, mean: Tensor, variance: Tensor) -> None:
        self[f"{name}/moving_mean"].lerp_(mean, 0.01)
        self[f"{name}/moving_variance"].lerp_(variance, 0.01)

    def _dense(self, name: str, x: Tensor) -> Tensor:
        return x @ self[f"{name}/kernel"] + self[f"{name}/bias"]

    def _add_parameter(self, name: str, values: Tensor) -> None:
        self.register_parameter(name, nn.Parameter(values))

    def _add_dense(self, name: str, inputs: int, outputs: int, bias: float = 0.0) -> None:
        self._add_parameter(f"{name}/kernel", nn.init.xavier_uniform_(torch.empty(inputs, outputs)))
        self._add_parameter(f"{name}/bias", torch.full((outputs,), bias))

    def _add_dense_stack(self, name: str, sizes: tuple[int, ...]) -> None:
        for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:], strict=False), 1):
            self._add_dense(name.format(i), inputs, outputs)

    def _add_batch_norm(self, name: str, size: int) -> None:
        self._add_parameter(f"{name}/gamma", torch.ones(size))
        self._add_parameter(f"{name}/beta", torch.zeros(size))
        self.register_buffer(f"{name}/moving_mean", torch.zeros(size))
        self.register_buffer(f"{name}/moving_variance", torch.ones(size))


def sequence_mask(history: Tensor, seq_len: Tensor) -> Tensor:
    """1 [B, T, 1] for the steps before seq_len [B], 0 after."""
    steps = torch.arange(history.shape[1])
    given = steps[None] < seq_len[:, None]  # [rows, steps]
    return torch.where(given, 1.0, 0.0).to(history.dtype)[..., None]  # a converted boolean is wrong on ARM
