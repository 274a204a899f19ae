"""Figures of the notebook: the network, a picture with its tokens, pictures with words."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageOps

from utils.charts import INK, LINE, PICTURE, TEXT, arrows, bars_by_kind, box

MISSING_GREY = 235  # of tokens that are not drawn yet
LINE_CHARACTERS = 30  # of a line above or below a picture, at most
HUE_STEP = 0.618034  # golden ratio: the hues of neighbouring numbers differ much
FRAME_GREY = 150


def network_figure() -> Figure:
    """The two paths through one language model: from a picture to words, and from words to a picture."""
    figure = Figure(figsize=(9.4, 3.9), layout="constrained")
    axes = figure.subplots()
    model = box(axes, 4.9, 1.1, "language model\n(a Llama),\nKV cache inside", size=11)
    seen = [box(axes, 0.2, 2.5, "picture", PICTURE, 11), box(axes, 1.9, 2.5, "vision tower\n(SigLIP)", size=11)]
    arrows(axes, [*seen, box(axes, 3.6, 2.5, "aligner", size=11), model])
    words = [box(axes, 0.3, 1.1, "question\nor prompt", TEXT, 11), box(axes, 2.2, 1.1, "text\nembeddings", size=11)]
    arrows(axes, [*words, model])
    arrows(axes, [model, box(axes, 7.2, 2.5, "text head", size=11), box(axes, 9, 2.5, "answer", TEXT, 11)])
    drawn = [box(axes, 7.2, 1.1, "image head", size=11), box(axes, 9, 1.1, "image\ntokens", PICTURE, 11)]
    arrows(
        axes,
        [model, *drawn, box(axes, 10.7, 1.1, "VQ decoder", size=11), box(axes, 10.7, -0.3, "drawing", PICTURE, 11)],
    )
    again = box(axes, 6.9, -0.3, "generation embeddings\nand their aligner", size=11)
    arrows(axes, [drawn[1], again, model])
    axes.text(5.6, -0.85, "each image token is the next input", ha="center", fontsize=10, color=INK, style="italic")
    axes.set(xlim=(-0.6, 11.7), ylim=(-1.05, 3))
    axes.axis("off")
    return figure


def framed(picture: Image.Image, side: int) -> Image.Image:
    """A square picture enlarged without blur to at least `side` pixels, with a grey frame."""
    factor = max(1, -(-side // picture.width))
    enlarged = picture.resize((factor * picture.width, factor * picture.height), Image.Resampling.NEAREST)
    return ImageOps.expand(enlarged, 1, (FRAME_GREY,) * 3)


def token_grid(tokens: Sequence[int], rows: int, codes: int) -> Image.Image:
    """The tokens of a drawing [up to rows * rows] as a picture of rows x rows pixels, with a colour for each code.

    Tokens that are not drawn yet are grey.
    """
    pixels = np.full((rows * rows, 3), MISSING_GREY, np.uint8)
    for place, token in enumerate(tokens):
        light = 0.45 + 0.5 * (int(token) / max(1, codes - 1))
        pixels[place] = [round(255 * x) for x in colorsys.hsv_to_rgb(int(token) * HUE_STEP % 1, 0.55, light)]
    return Image.fromarray(pixels.reshape(rows, rows, 3))


def tokens_figure(picture: Image.Image, tokens: Sequence[int], decoded: Image.Image) -> Figure:
    """A picture, the same with the numbers of its tokens [rows * rows] over it, and what the tokens decode to."""
    rows = int(len(tokens) ** 0.5)
    side = picture.width / rows
    figure = Figure(figsize=(9.4, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    titles = "a picture", f"its {len(tokens)} tokens", "the tokens, decoded"
    for axes, title, shown in zip(panels, titles, (picture, picture, decoded), strict=True):
        _show(axes, shown)
        axes.set_title(title, fontsize=11, color=INK)
    for line in range(1, rows):
        panels[1].axvline(line * side - 0.5, color=LINE, linewidth=0.8)
        panels[1].axhline(line * side - 0.5, color=LINE, linewidth=0.8)
    for place, token in enumerate(tokens):
        row, column = divmod(place, rows)
        where = (column + 0.5) * side - 0.5, (row + 0.5) * side - 0.5
        label = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.75, "linewidth": 0}
        panels[1].text(*where, str(int(token)), ha="center", va="center", fontsize=9, color=INK, bbox=label)
    return figure


def pictures_with_words(pictures: Iterable[tuple[str, ...]], columns: int = 4) -> Figure:
    """Framed pictures in rows of `columns`, each (words above, picture) or (words above, picture, words below)."""
    pictures = list(pictures)
    rows = -(-len(pictures) // columns)
    below = any(len(entry) > 2 for entry in pictures)
    figure = Figure(figsize=(2.35 * columns, (3.1 + 0.3 * below) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(pictures) :]:
        axes.axis("off")
    for axes, (words, picture, *caption) in zip(panels, pictures, strict=False):
        _show(axes, picture)
        axes.set_title(_wrapped(words), fontsize=10, color=INK)
        if caption:
            axes.set_xlabel(_wrapped(caption[0]), fontsize=11, color=INK, fontweight="bold")
    return figure


def drawings_chart(rows: Iterable[Mapping]) -> Figure:
    """The shares of correct drawings by kind and precision; the title has how many of all are correct."""
    rows = list(rows)
    figure = bars_by_kind(rows, "drawings, ", "share of correct drawings")
    overall = [row for row in rows if row["metric"] == "drawings, all kinds" and "control" not in row]
    counts = ", ".join(f"{row['value'] * row['of']:.0f} at {row['precision']}" for row in overall)
    figure.axes[0].set_title(f"Correct drawings of {overall[0]['of']}: {counts}", fontsize=11, color=INK, loc="left")
    return figure


def _show(axes: Axes, picture: Image.Image) -> None:
    """Show a picture with a frame, enlarged without blur."""
    axes.imshow(picture, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=1)


def _wrapped(words: str) -> str:
    return "\n".join(fill(line, LINE_CHARACTERS) for line in words.splitlines())
