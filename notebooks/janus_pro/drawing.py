"""Pictures of the lesson: the network, tokens as colours, drawings with their sentences, and bars of what is right."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

INK, LINE, FILL, PICTURE, TEXT = "#23303f", "#8793a1", "#ffffff", "#dbe8f5", "#ffe3bd"
COLOURS = ("#2a78b8", "#d97a00", "#23303f", "#8793a1")
CONTROLS = ("o", "v", "s", "^")  # marks of the controls in the bars
MISSING = 235  # grey of what is not drawn yet
GOLDEN = 0.618034  # of a turn round the colours: neighbours in number are far apart


def network_picture() -> Figure:
    """The two ways through one language model: a picture to words, and words to a picture."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    model = _box(axes, 4.5, 1, "one language model,\nKV cache inside", FILL)
    asked = [_box(axes, 0, 2.2, "picture", PICTURE), _box(axes, 1.5, 2.2, "SigLIP tower", FILL)]
    _chain(axes, [*asked, _box(axes, 2.8, 2.2, "aligner", FILL), model])
    _chain(axes, [_box(axes, 0, 1, "question or\nsentence", TEXT), _box(axes, 2, 1, "token embedding", FILL), model])
    _chain(axes, [model, _box(axes, 6.4, 2.2, "text head", FILL), _box(axes, 8, 2.2, "answer", TEXT)])
    drawn = [_box(axes, 6.4, 0.6, "image head", FILL), _box(axes, 7.9, 0.6, "image tokens", PICTURE)]
    _chain(axes, [model, *drawn, _box(axes, 9.5, 0.6, "VQ decoder", FILL), _box(axes, 10.8, 0.6, "drawing", PICTURE)])
    again = _box(axes, 6.4, -0.5, "generation embedding and aligner", FILL)
    _chain(axes, [drawn[1], again, model])
    axes.set(xlim=(-0.7, 11.4), ylim=(-0.9, 2.7))
    axes.axis("off")
    return figure


def token_grid(tokens: Sequence[int], rows: int, codes: int) -> Image.Image:
    """The tokens of a drawing [up to rows * rows] as a picture of rows x rows pixels, a colour for each of the codes;
    what is not drawn yet is grey."""
    pixels = np.full((rows * rows, 3), MISSING, np.uint8)
    for place, token in enumerate(tokens):
        light = 0.45 + 0.5 * (int(token) / max(1, codes - 1))
        pixels[place] = [round(255 * x) for x in colorsys.hsv_to_rgb(int(token) * GOLDEN % 1, 0.55, light)]
    return Image.fromarray(pixels.reshape(rows, rows, 3))


def pictures_with_words(pictures: Iterable[tuple[str, Image.Image]], columns: int = 4) -> Figure:
    """Pictures with words above them, in rows of `columns`."""
    pictures = list(pictures)
    rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(2.2 * columns, 2.5 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels:
        axes.axis("off")
    for axes, (words, picture) in zip(panels, pictures, strict=False):
        axes.imshow(picture, interpolation="nearest")
        axes.set_title(words, fontsize=8, color=INK, wrap=True)
    return figure


def quality_bars(rows: Iterable[Mapping], metric: str, label: str) -> Figure:
    """Bars of the quality rows whose metric begins with `metric`, a group for each kind and a bar for each precision;
    the controls, which must stay below, are marks. label: of the axis."""
    rows = [row for row in rows if row["metric"].startswith(metric) and row["threshold"] is not None]
    kinds = list(dict.fromkeys(row["metric"] for row in rows))
    precisions = list(dict.fromkeys(row["precision"] for row in rows if "controls" not in row))
    controls = list(dict.fromkeys(row["control"] for row in rows if "controls" in row))
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(1, len(precisions))
    for number, (precision, colour) in enumerate(zip(precisions, COLOURS, strict=False)):
        values = _values(rows, kinds, "precision", precision)
        places = [x - 0.4 + (number + 0.5) * width for x in values]
        axes.bar(places, list(values.values()), width, color=colour, label=precision)
    for control, mark in zip(controls, CONTROLS, strict=False):
        values = _values(rows, kinds, "control", control)
        look = {"marker": mark, "color": INK, "edgecolors": "white", "s": 34, "zorder": 3}
        axes.scatter(list(values), list(values.values()), label=control, **look)
    axes.set_xticks(range(len(kinds)), [kind.removeprefix(metric) for kind in kinds], color=INK)
    axes.set_ylabel(label, color=INK)
    axes.set_ylim(0, 1.02)
    axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
    return figure


def _values(rows: Sequence[Mapping], kinds: Sequence[str], field: str, wanted: str) -> dict[int, float]:
    """The value in each kind's group, by the group's number, of the rows whose `field` is `wanted`."""
    return {kinds.index(row["metric"]): row["value"] for row in rows if row.get(field) == wanted}


def _box(axes, x: float, y: float, label: str, fill: str) -> Text:
    box = {"boxstyle": "round,pad=0.35", "facecolor": fill, "edgecolor": INK, "linewidth": 0.8}
    return axes.text(x, y, label, ha="center", va="center", fontsize=8, color=INK, bbox=box, zorder=3)


def _chain(axes, boxes: Sequence[Text]) -> None:
    """Arrows from each box to the next one."""
    for begin, end in pairwise(boxes):
        ends = {"patchA": begin.get_bbox_patch(), "patchB": end.get_bbox_patch()}
        arrow = {"arrowstyle": "-|>", "color": LINE, "linewidth": 0.9, **ends}
        axes.annotate("", end.get_position(), begin.get_position(), arrowprops=arrow)
