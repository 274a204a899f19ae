"""The notebook's figures: the network, and pictures of digits with what the model read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from utils import charts

LAYERS = ("picture\n8 x 8", "convolution\n16 x 8 x 8", "pooling\n16 x 4 x 4", "dense\n64", "logits\n10")


def network_figure() -> Figure:
    """The layers in a row, each with the shape of its output."""
    figure = Figure(figsize=(8, 1.2), layout="constrained")
    axes = figure.subplots()
    charts.arrows(axes, [charts.box(axes, x, 0, layer, size=9) for x, layer in enumerate(LAYERS)])
    axes.set(xlim=(-0.5, len(LAYERS) - 0.5), ylim=(-0.5, 0.5))
    axes.axis("off")
    return figure


def digits_figure(pictures: np.ndarray, titles: Sequence[str]) -> Figure:
    """Pictures [n, 8, 8] in a row, each below its title."""
    figure = Figure(figsize=(1.2 * len(titles), 1.5), layout="constrained")
    panels = figure.subplots(1, len(titles), squeeze=False).ravel()
    for axes, picture, title in zip(panels, pictures, titles, strict=True):
        axes.imshow(picture, cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(title, fontsize=10, color=charts.INK)
        axes.axis("off")
    return figure
