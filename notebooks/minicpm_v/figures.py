"""Figures of the notebook: the network, and the slices of a picture (the demo shows them, too)."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from utils.charts import INK, PICTURE, TEXT, arrows, box

LINE_COLOUR = (217, 64, 0)  # between slices


def network_picture() -> Figure:
    """From a picture and a question to the answer: slices, vision tower, resampler, language model."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    picture, model = box(axes, 0, 1.5, "picture", PICTURE), box(axes, 7.1, 1.5, "language\nmodel")
    for row, name in enumerate(("overview", "slice 1", "slice 2", "slice n")):
        y = 3 - row
        embeddings = box(axes, 5.5, y, "64 embeddings", PICTURE)
        chain = [picture, box(axes, 1.25, y, name, PICTURE), box(axes, 2.6, y, "vision tower")]
        arrows(axes, [*chain, box(axes, 4.05, y, "resampler"), embeddings, model])
    words = box(axes, 2.6, -1, "question", TEXT), box(axes, 5.5, -1, "embeddings of the words", TEXT)
    arrows(axes, [*words, model, box(axes, 8.3, 1.5, "answer", TEXT)])
    axes.text(3.3, 3.55, "the same weights for every slice, whatever its grid of patches", ha="center", color=INK)
    axes.set(xlim=(-0.5, 8.8), ylim=(-1.4, 3.8))
    axes.axis("off")
    return figure


def draw_slices(picture: Image.Image, grid: tuple[int, int]) -> Image.Image:
    """A copy of a picture with the cuts of a grid (columns, rows) drawn over it, and the slices' order in numbers.

    grid: as in `slicing.Plan`, (0, 0) where the picture stays whole.
    """
    drawn = picture.convert("RGB")
    if grid == (0, 0):
        return drawn
    columns, rows = grid
    pen, thick = ImageDraw.Draw(drawn), max(1, round(max(drawn.size) / 250))
    edges = [[round(side * i / parts) for i in range(parts + 1)] for side, parts in zip(drawn.size, grid, strict=True)]
    for x in edges[0][1:-1]:
        pen.line((x, 0, x, drawn.height), LINE_COLOUR, thick)
    for y in edges[1][1:-1]:
        pen.line((0, y, drawn.width, y), LINE_COLOUR, thick)
    tall = max(8, min(drawn.width // columns, drawn.height // rows) // 8)
    for number in range(columns * rows):
        row, column = divmod(number, columns)
        place = edges[0][column] + tall // 3, edges[1][row] + tall // 4
        pen.text(
            place, str(number + 1), LINE_COLOUR, font_size=tall, stroke_width=max(1, tall // 12), stroke_fill=(255,) * 3
        )
    return drawn


def slices_picture(pictures: Mapping[str, Image.Image], columns: int | None = None) -> Figure:
    """Pictures with their names above, in rows of `columns`, all to the same scale."""
    columns = columns or len(pictures)
    rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(2.2 * columns, 2.4 * rows), layout="constrained")
    width, height = (max(sides) for sides in zip(*(x.size for x in pictures.values()), strict=True))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels:
        axes.axis("off")
    for axes, (name, picture) in zip(panels, pictures.items(), strict=False):
        axes.imshow(picture)
        middle = picture.width / 2
        axes.set(xlim=(middle - width / 2, middle + width / 2), ylim=(height, 0))
        axes.set_title(f"{name}\n{picture.width} x {picture.height}", fontsize=9, color=INK)
    return figure
