"""Scores DIEN on held-out interactions of MovieLens, and compares the conversion with PyTorch.

All functions but `parity` measure the tiny checkpoint, which is trained on MovieLens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score

from notebooks.dien import convert
from notebooks.dien.data import MAX_HISTORY, SAMPLINGS, Examples, movielens
from notebooks.dien.measuring.bench import random_network
from notebooks.dien.network import DIEN, Config, load_tiny
from notebooks.dien.pipeline import ClickModel
from utils import compare
from utils.tables import Table

FP32_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32"}  # the CPU's default may be bf16
TOLERANCE = 1e-4
EVERY_USER = 4  # users whose id it divides are scored
AUC_LOSS = 0.003  # the most that a conversion may lose
LOG_LOSS_GAIN = 0.01  # the most that it may add
GOAL_MARGIN = 0.05  # of AUC above the better baseline: a model below that is of little use
FORMS = {
    "paper_gate": "DIEN with the paper's gate",
    "plain_gru": "second GRU without attention",
    "sum_pooling": "sum pooling, without GRUs and attention",
}
UNGATED = "DIEN, attention switched off after training"
SHUFFLED = "DIEN, histories in random order"
Infer = Callable[[dict[str, np.ndarray]], tuple[np.ndarray, np.ndarray]]  # inputs to y_hat [B, 2] and attention [B, T]


@cache
def test_sets() -> dict[str, Examples]:
    """The held-out interactions of every fourth user, by the sampling of negatives."""
    return {sampling: movielens().test_set(sampling, every=EVERY_USER) for sampling in SAMPLINGS}


def parity(network: DIEN, ir: Path, device: str = "CPU") -> list[dict]:
    """Parity rows in FP32: a converted network at its own length and cut to 7 steps, and the authors' form.

    The authors' form takes the statistics of Dice from the batch, and padding counts in the sum over the history; it
    has random weights. The ids are those of MovieLens.
    """
    model = ClickModel(ir, device, **FP32_PROPERTIES)
    whole = test_sets()["uniform"].inputs(slice(0, 256))
    padding = ((0, 0), (0, model.length - MAX_HISTORY))
    whole |= {name: np.pad(whole[name], padding) for name in ("mid_his", "cat_his", "mask")}
    short = {name: x[:, :7] if x.ndim == 2 else x for name, x in whole.items()}
    short["seq_len"] = np.minimum(short["seq_len"], 7)
    y_hat, attention = model.infer(whole)
    expected_y_hat, expected_attention = torch_infer(network)(whole)
    authors = random_network(Config(*movielens().sizes))
    with TemporaryDirectory() as scratch:
        path = convert.convert(authors, Path(scratch) / convert.MODEL_XML, 10)
        authors_y_hat, _ = ClickModel(path, device, None, **FP32_PROPERTIES).infer(short)
    return [
        compare.parity(f"{model.length} steps: probabilities", y_hat, expected_y_hat, TOLERANCE),
        compare.parity(f"{model.length} steps: attention", attention, expected_attention, TOLERANCE),
        compare.parity(
            "cut to 7 steps: probabilities", model.infer(short)[0], torch_infer(network)(short)[0], TOLERANCE
        ),
        compare.parity(
            "authors' form, random weights: probabilities", authors_y_hat, torch_infer(authors)(short)[0], TOLERANCE
        ),
    ]


def torch_infer(network: DIEN) -> Infer:
    """The network in PyTorch with arrays in and out, like `ClickModel.infer`."""

    @torch.inference_mode()
    def infer(inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        y_hat, attention = network(**{name: torch.from_numpy(x) for name, x in inputs.items()})
        return y_hat.numpy(), attention.numpy()

    return infer


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """PyTorch on one thread: with matrices this small, others cost more than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def predict(infer: Infer, examples: Examples, batch: int = 1024) -> np.ndarray:
    """Probability of a click [n] for each example, as float64 for the metrics."""
    starts = range(0, len(examples), batch)
    parts = [infer(examples.inputs(slice(start, start + batch)))[0][:, 0] for start in starts]
    return np.concatenate(parts).astype(np.float64)


@_one_torch_thread()
def quality(fp32: Path, int8: Path, device: str = "CPU") -> list[dict]:
    """Quality rows: AUC and log-loss at three precisions, with their controls, for both samplings of negatives."""
    models = {
        "FP32": ClickModel(fp32, device, **FP32_PROPERTIES),
        "BF16": ClickModel(fp32, device, INFERENCE_PRECISION_HINT="bf16"),
        "INT8": ClickModel(int8, device, **FP32_PROPERTIES),
    }
    network, rows = load_tiny(), []
    for sampling, examples in test_sets().items():
        clicked = examples.clicked
        reference = predict(torch_infer(network), examples)
        scores = {precision: predict(model.infer, examples) for precision, model in models.items()}
        others = predict(models["FP32"].infer, _with_other_histories(examples))

        # AUC: the goal lies above the better control
        controls = {"popularity": movielens().popularity[examples.mid], "another user's history": others}
        controls = {name: roc_auc_score(clicked, control) for name, control in controls.items()}
        values = {precision: roc_auc_score(clicked, ours) for precision, ours in scores.items()}
        expected = roc_auc_score(clicked, reference)
        goal = max(controls.values()) + GOAL_MARGIN
        limits = {"threshold": expected - AUC_LOSS, "goal": goal, "better": "higher"}
        rows += _rows(f"AUC, {sampling} negatives", values, expected, controls, **limits)

        # Log-loss
        controls = {"always one half": np.full(len(examples), 0.5), "another user's history": others}
        controls = {name: log_loss(clicked, control) for name, control in controls.items()}
        values = {precision: log_loss(clicked, ours) for precision, ours in scores.items()}
        expected = log_loss(clicked, reference)
        limits = {"threshold": expected + LOG_LOSS_GAIN, "goal": None, "better": "lower"}
        rows += _rows(f"log-loss, {sampling} negatives", values, expected, controls, **limits)
    return rows


def _rows(
    metric: str,
    values: Mapping[str, float],
    reference: float,
    controls: Mapping[str, float],
    *,
    threshold: float,
    goal: float | None,
    better: str,
) -> list[dict]:
    measured = [
        compare.quality(metric, precision, value, reference, threshold, better, goal=goal)
        for precision, value in values.items()
    ]
    return measured + [compare.control(metric, name, value, threshold, better) for name, value in controls.items()]


def _with_other_histories(examples: Examples) -> Examples:
    """The same candidates after the histories of other users."""
    far = np.roll(np.arange(len(examples)), len(examples) // 2)
    return examples.with_histories(examples.mid_his[far], examples.cat_his[far], examples.seq_len[far])


def shuffled(examples: Examples, rng: np.random.Generator) -> Examples:
    """The same candidates after the same histories in random order."""
    present = np.arange(MAX_HISTORY) < examples.seq_len[:, None]  # [n, steps]
    keys = np.where(present, rng.random(present.shape), 2)  # padding stays at the end
    order = np.argsort(keys, 1)
    mid_his, cat_his = (np.take_along_axis(x, order, 1) for x in (examples.mid_his, examples.cat_his))
    return examples.with_histories(mid_his, cat_his, examples.seq_len)


@_one_torch_thread()
def ablations() -> list[dict]:
    """Rows without a threshold: the AUC of the other trained forms and of DIEN with a part switched off, by PyTorch."""
    rng, dien, rows = np.random.default_rng(0), load_tiny(), []
    ungated = load_tiny()
    ungated.config = replace(ungated.config, evolution="gru")
    for sampling, examples in test_sets().items():
        for form, name in FORMS.items():
            rows.append(_ablation(sampling, name, predict(torch_infer(load_tiny(form)), examples)))
        rows.append(_ablation(sampling, UNGATED, predict(torch_infer(ungated), examples)))
        rows.append(_ablation(sampling, SHUFFLED, predict(torch_infer(dien), shuffled(examples, rng))))
    return rows


def _ablation(sampling: str, name: str, scores: np.ndarray) -> dict:
    auc = roc_auc_score(test_sets()[sampling].clicked, scores)
    return compare.quality(f"AUC, {sampling} negatives: {name}", "PyTorch", auc, auc, None, "higher")


def ablation_table(quality: Iterable[Mapping], ablations: Iterable[Mapping]) -> Table:
    """A line for DIEN and for each ablation: the AUC for both samplings, to four digits."""
    auc = {row["metric"]: row["reference"] for row in [*quality, *ablations] if row["reference"] is not None}
    lines = [
        ["DIEN with the program's gate (tiny)", *(f"{auc[f'AUC, {sampling} negatives']:.4f}" for sampling in SAMPLINGS)]
    ]
    for name in (*FORMS.values(), UNGATED, SHUFFLED):
        lines.append([name, *(f"{auc[f'AUC, {sampling} negatives: {name}']:.4f}" for sampling in SAMPLINGS)])
    return Table(["PyTorch, FP32", *(f"AUC, {sampling} negatives" for sampling in SAMPLINGS)], lines)


@dataclass(frozen=True)
class AttentionProfile:
    """Averages of the attention over rows with a full history.

    users, rows: what the averages are of. by_position: the weight at each place, oldest first [MAX_HISTORY]. largest:
    the largest weight of a row. on_genre: the weight on movies whose first genre is the candidate's; genre_share: the
    share of such movies in the histories; recency_on_genre: the weight that `by_position` would give them.
    same_movie: of pairs of a chosen and a random candidate after the same history, the share whose largest weights
    are on the same movie; moved: the weight that differs in such a pair.
    """

    users: int
    rows: int
    by_position: np.ndarray
    largest: float
    on_genre: float
    genre_share: float
    recency_on_genre: float
    same_movie: float
    moved: float


@_one_torch_thread()
def attention_profile(infer: Infer, batch: int = 1024) -> AttentionProfile:
    """Average the attention over the held-out rows whose history is full, with uniform negatives."""
    examples = test_sets()["uniform"]
    full = examples.seq_len == MAX_HISTORY
    examples = replace(examples, **{name: array[full] for name, array in vars(examples).items()})
    starts = range(0, len(examples), batch)
    attention = np.concatenate([infer(examples.inputs(slice(start, start + batch)))[1] for start in starts])
    by_position = attention.mean(0)  # [steps]
    same_genre = examples.cat_his == examples.cat[:, None]  # [n, steps]
    chosen, random = attention[::2], attention[1::2]  # [n / 2, steps]: the same history, two candidates
    return AttentionProfile(
        users=len(np.unique(examples.uid)),
        rows=len(examples),
        by_position=by_position,
        largest=float(attention.max(1).mean()),
        on_genre=float((attention * same_genre).sum(1).mean()),
        genre_share=float(same_genre.mean()),
        recency_on_genre=float((by_position * same_genre).sum(1).mean()),
        same_movie=float((chosen.argmax(1) == random.argmax(1)).mean()),
        moved=float(np.abs(chosen - random).sum(1).mean() / 2),
    )
