"""What the figures of notebooks share: colours, boxes with arrows between them, bar charts of quality rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

INK, LINE, FILL, PICTURE, TEXT = "#23303f", "#8793a1", "#ffffff", "#dbe8f5", "#ffe3bd"
SOUND, VOICE = PICTURE, "#e3f1dc"
COLOURS = ("#2a78b8", "#d97a00", "#23303f", "#8793a1")
CONTROLS = ("o", "v", "s", "^")  # marks of the controls in the bars


def box(axes: Axes, x: float, y: float, label: str, fill: str = FILL, size: float = 8) -> Text:
    """A label in a box with round corners, its middle at x and y."""
    look = {"boxstyle": "round,pad=0.35", "facecolor": fill, "edgecolor": INK, "linewidth": 0.8}
    return axes.text(x, y, label, ha="center", va="center", fontsize=size, color=INK, bbox=look, zorder=3)


def arrows(axes: Axes, boxes: Sequence[Text]) -> None:
    """Arrows from each box to the next one."""
    for begin, end in pairwise(boxes):
        ends = {"patchA": begin.get_bbox_patch(), "patchB": end.get_bbox_patch()}
        look = {"arrowstyle": "-|>", "color": LINE, "linewidth": 0.9, **ends}
        axes.annotate("", end.get_position(), begin.get_position(), arrowprops=look)


def bars_by_kind(rows: Iterable[Mapping], metric: str, label: str) -> Figure:
    """A bar chart of the quality rows (`utils.compare`) whose metric begins with `metric`; values lie in 0..1.

    There is a group of bars for each kind, which the rest of the metric names, and a bar for each precision. Negative
    controls are marks. label: of the axis.
    """
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


def _values(rows: Sequence[Mapping], kinds: Sequence[str], field: str, value: str) -> dict[int, float]:
    """The value in each kind's group, by the group's number, of the rows whose `field` is `value`."""
    return {kinds.index(row["metric"]): row["value"] for row in rows if row.get(field) == value}


def quality_bars(rows: Iterable[Mapping]) -> Figure:
    """A panel for each metric of quality rows: a bar for each precision, its threshold as a line, controls as marks."""
    rows = list(rows)
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    figure = Figure(figsize=(9, 2 * -(-len(metrics) // 3)), layout="constrained")
    panels = figure.subplots(-(-len(metrics) // 3), 3, squeeze=False).ravel()
    for axes in panels[len(metrics) :]:
        axes.axis("off")
    for axes, metric in zip(panels, metrics, strict=False):
        of_metric = [row for row in rows if row["metric"] == metric]
        bars = {row["precision"]: row["value"] for row in of_metric if "controls" not in row}
        axes.bar(list(bars), list(bars.values()), color=[COLOURS[i % len(COLOURS)] for i in range(len(bars))])
        for row in of_metric:
            if "controls" in row:
                axes.plot(len(bars), row["value"], "v", color=INK, clip_on=False)
                axes.axhline(row["threshold"], color=INK, linestyle=":", linewidth=1)
                axes.set_xticks([*range(len(bars)), len(bars)], [*bars, "control"])
        axes.set_title(f"{metric}\n{of_metric[0]['better']} is better", fontsize=8, color=INK)
        axes.tick_params(labelsize=7)
    return figure
