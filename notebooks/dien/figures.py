"""Pictures: the attention over a history, and the network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

INK, BAR, LINE, FILL = "#23303f", "#d97a00", "#8793a1", "#e8edf3"


def attention_picture(titles: Sequence[str], attention: np.ndarray, candidate: str) -> Figure:
    """Bars of the attention [n] over a history of n titles, oldest on top, for one candidate."""
    figure = Figure(figsize=(8, 0.9 + 0.24 * len(titles)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(titles)), attention, color=BAR)
    axes.axvline(1 / len(titles), color=LINE, linestyle="--", linewidth=0.9)
    axes.set_yticks(range(len(titles)), [title[:48] for title in titles], fontsize=8, color=INK)
    axes.invert_yaxis()
    axes.set_xlabel("attention (dashed: equal shares)", color=INK)
    axes.set_title(f"judging {candidate}", color=INK, fontsize=10)
    return figure


def network_picture() -> Figure:
    """The network: items, first GRU, attention with the candidate, AUGRU, last layers."""
    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    axes = figure.subplots()
    names = ("item 1", "item 2", "...", "item T")
    steps = len(names)
    for step, name in enumerate(names):
        stack = [(name, FILL), ("GRU", "#ffffff"), ("attention", "#fff1dc"), ("AUGRU", "#ffd9a0")]
        for row, (label, fill) in enumerate(stack):
            _box(axes, step, row, label, fill)
            if row:
                _arrow(axes, (step, row - 1), (step, row))
        if step:
            _arrow(axes, (step - 1, 1), (step, 1))
            _arrow(axes, (step - 1, 3), (step, 3))
    _box(axes, steps, 2, "candidate", FILL)
    _box(axes, steps + 1, 2, "user", FILL)
    _box(axes, steps + 0.5, 3, "normalise, 200, Dice,\n80, Dice, softmax", "#ffffff")
    for step in range(steps):  # the candidate enters the attention at every step
        _arrow(axes, (steps, 2), (step, 2), bend=-0.18)
    _arrow(axes, (steps - 1, 3), (steps + 0.15, 3))
    _arrow(axes, (steps, 2), (steps + 0.5, 3))
    _arrow(axes, (steps + 1, 2), (steps + 0.5, 3))
    axes.set(xlim=(-0.6, steps + 1.6), ylim=(-0.5, 3.6))
    axes.axis("off")
    return figure


def _box(axes, x: float, y: float, label: str, fill: str) -> None:
    box = {"boxstyle": "round,pad=0.4", "facecolor": fill, "edgecolor": INK, "linewidth": 0.8}
    axes.text(x, y, label, ha="center", va="center", fontsize=8.5, color=INK, bbox=box)


def _arrow(axes, start: tuple[float, float], end: tuple[float, float], bend: float = 0.0) -> None:
    arrow = {"arrowstyle": "-|>", "color": INK, "shrinkA": 18, "shrinkB": 18, "linewidth": 0.9}
    arrow["connectionstyle"] = f"arc3,rad={bend}"
    axes.annotate("", end, start, arrowprops=arrow)
