"""Figures of the notebook: the network, tokens as colours, drawings with their prompts."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence
from textwrap import fill

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from utils.charts import INK, PICTURE, TEXT, arrows, box

MISSING_GREY = 235  # of tokens that are not drawn yet
LINE_CHARACTERS = 30  # of a line above a picture, at most
HUE_STEP = 0.618034  # golden ratio: the hues of neighbouring numbers differ much


def network_picture() -> Figure:
    """The two paths through one language model: from a picture to words, and from words to a picture."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    model = box(axes, 4.5, 1, "one language model,\nKV cache inside")
    asked = [box(axes, 0, 2.2, "picture", PICTURE), box(axes, 1.5, 2.2, "SigLIP tower")]
    arrows(axes, [*asked, box(axes, 2.8, 2.2, "aligner"), model])
    arrows(axes, [box(axes, 0, 1, "question or\nsentence", TEXT), box(axes, 2, 1, "token embedding"), model])
    arrows(axes, [model, box(axes, 6.4, 2.2, "text head"), box(axes, 8, 2.2, "answer", TEXT)])
    drawn = [box(axes, 6.4, 0.6, "image head"), box(axes, 7.9, 0.6, "image tokens", PICTURE)]
    arrows(axes, [model, *drawn, box(axes, 9.5, 0.6, "VQ decoder"), box(axes, 10.8, 0.6, "drawing", PICTURE)])
    again = box(axes, 6.4, -0.5, "generation embedding and aligner")
    arrows(axes, [drawn[1], again, model])
    axes.set(xlim=(-0.7, 11.4), ylim=(-0.9, 2.7))
    axes.axis("off")
    return figure


def token_grid(tokens: Sequence[int], rows: int, codes: int) -> Image.Image:
    """The tokens of a drawing [up to rows * rows] as a picture of rows x rows pixels, with a colour for each code.

    Tokens that are not drawn yet are grey.
    """
    pixels = np.full((rows * rows, 3), MISSING_GREY, np.uint8)
    for place, token in enumerate(tokens):
        light = 0.45 + 0.5 * (int(token) / max(1, codes - 1))
        pixels[place] = [round(255 * x) for x in colorsys.hsv_to_rgb(int(token) * HUE_STEP % 1, 0.55, light)]
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
        axes.set_title("\n".join(fill(line, LINE_CHARACTERS) for line in words.splitlines()), fontsize=9, color=INK)
    return figure
