"""Pictures of the lesson: the network, the slices of a picture (the demo shows them too), and bars of accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image, ImageDraw

INK, LINE, FILL, PICTURE, TEXT = "#23303f", "#8793a1", "#ffffff", "#dbe8f5", "#ffe3bd"
COLOURS = ("#2a78b8", "#d97a00", "#23303f", "#8793a1")
CONTROLS = ("o", "v", "s", "^")  # marks of the controls in the bars
CUT = (217, 64, 0)  # of the lines between slices


def network_picture() -> Figure:
    """From a picture and a question to the answer: slices, vision tower, resampler, language model."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    picture, model = _box(axes, 0, 1.5, "picture", PICTURE), _box(axes, 7.1, 1.5, "language\nmodel", FILL)
    for row, name in enumerate(("overview", "slice 1", "slice 2", "slice n")):
        y = 3 - row
        embeddings = _box(axes, 5.5, y, "64 embeddings", PICTURE)
        chain = [picture, _box(axes, 1.25, y, name, PICTURE), _box(axes, 2.6, y, "vision tower", FILL)]
        _chain(axes, [*chain, _box(axes, 4.05, y, "resampler", FILL), embeddings, model])
    words = _box(axes, 2.6, -1, "question", TEXT), _box(axes, 5.5, -1, "embeddings of the words", TEXT)
    _chain(axes, [*words, model, _box(axes, 8.3, 1.5, "answer", TEXT)])
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
        pen.line((x, 0, x, drawn.height), CUT, thick)
    for y in edges[1][1:-1]:
        pen.line((0, y, drawn.width, y), CUT, thick)
    tall = max(8, min(drawn.width // columns, drawn.height // rows) // 8)
    for number in range(columns * rows):
        row, column = divmod(number, columns)
        place = edges[0][column] + tall // 3, edges[1][row] + tall // 4
        pen.text(place, str(number + 1), CUT, font_size=tall, stroke_width=max(1, tall // 12), stroke_fill=(255,) * 3)
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
        axes.set_title(f"{name}\n{picture.width} x {picture.height}", fontsize=8, color=INK)
    return figure


def accuracy_bars(rows: Iterable[Mapping], metric: str = "accuracy, ") -> Figure:
    """Bars of the quality rows whose metric begins with `metric`, a group for each question kind and a bar for each
    precision; the controls, which must stay below, are marks."""
    rows = [row for row in rows if row["metric"].startswith(metric)]
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
    axes.set_ylabel("right answers", color=INK)
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
