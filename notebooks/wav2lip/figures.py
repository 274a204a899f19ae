"""Figures of the notebook: the network, strips of frames, and curves of the mouth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

INK, LINE, FILL, SOUND, FACE = "#23303f", "#8793a1", "#ffffff", "#ffe3bd", "#dbe8f5"
COLOURS = ("#23303f", "#d97a00", "#2a78b8", "#8793a1")


def network_picture() -> Figure:
    """The generator: sound enters at the left, the face from below, and the decoder uses both."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    sides = (96, 48, 24, 12, 6, 3, 1)
    for place, side in enumerate(reversed(sides)):
        _box(axes, place + 1, 0, f"{side} x {side}", FACE)
        _box(axes, place + 1, 1.5, f"{side} x {side}", FILL)
        _arrow(axes, (place + 1, 0), (place + 1, 1.5))
        if place:
            _arrow(axes, (place + 1, 0), (place, 0))
            _arrow(axes, (place, 1.5), (place + 1, 1.5))
    _box(axes, -0.4, 1.5, "audio encoder\n80 x 16 mel", SOUND)
    _arrow(axes, (-0.2, 1.5), (1, 1.5))
    _box(axes, 8.4, 0, "face, masked,\nand reference", FACE)
    _arrow(axes, (8.2, 0), (7, 0))
    _box(axes, 8.4, 1.5, "face with\nnew lips", FILL)
    _arrow(axes, (7, 1.5), (8.2, 1.5))
    axes.text(4, -0.55, "face encoder", ha="center", color=INK, fontsize=9)
    axes.text(4, 2.05, "decoder: after every block the encoder's features of that size join", ha="center", color=INK)
    axes.set(xlim=(-1.3, 9.2), ylim=(-0.8, 2.3))
    axes.axis("off")
    return figure


def strips(rows: Mapping[str, Sequence[np.ndarray]], inches: float = 1.2) -> Figure:
    """Rows of BGR pictures of one shape, each with its name at the left."""
    columns = max(map(len, rows.values()))
    figure = Figure(figsize=(columns * inches + 1, len(rows) * inches), layout="constrained")
    grid = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    for axes, (name, pictures) in zip(grid, rows.items(), strict=True):
        axes.imshow(np.concatenate(list(pictures), 1)[..., ::-1])
        axes.set(xticks=[], yticks=[])
        axes.set_ylabel(name, rotation=0, ha="right", va="center", color=INK, fontsize=9)
        axes.spines[:].set_visible(False)
    return figure


def curves(times: np.ndarray, lines: Mapping[str, np.ndarray], ylabel: str) -> Figure:
    """Some curves [n] over the same times (s), each scaled to mean 0 and standard deviation 1."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots()
    for (name, values), colour in zip(lines.items(), COLOURS, strict=False):
        axes.plot(times, (values - np.mean(values)) / (np.std(values) + 1e-9), label=name, color=colour, linewidth=1.4)
    axes.set_xlabel("seconds", color=INK)
    axes.set_ylabel(ylabel, color=INK)
    axes.legend(fontsize=8, loc="upper right")
    return figure


def _box(axes, x: float, y: float, label: str, fill: str) -> None:
    box = {"boxstyle": "round,pad=0.35", "facecolor": fill, "edgecolor": INK, "linewidth": 0.8}
    axes.text(x, y, label, ha="center", va="center", fontsize=8, color=INK, bbox=box)


def _arrow(axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    arrow = {"arrowstyle": "-|>", "color": LINE, "shrinkA": 20, "shrinkB": 20, "linewidth": 0.9}
    axes.annotate("", end, start, arrowprops=arrow)
