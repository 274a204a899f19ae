"""What the figures of notebooks share: colours, boxes with arrows between them, bar charts of quality rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from utils.compare import is_baseline, is_ours
from utils.tables import number

INK, LINE, FILL, PICTURE, TEXT = "#23303f", "#8793a1", "#ffffff", "#dbe8f5", "#ffe3bd"
SOUND, VOICE = PICTURE, "#e3f1dc"
PRECISIONS = {  # the colour of each, in every figure
    "FP32": "#1f4e79",
    "FP16": "#2a78b8",
    "BF16": "#5fa8d3",
    "INT8": "#d97a00",
    "INT4": "#b03a2e",
}
PEER = "#b9c1cb"  # of runtimes other than OpenVINO
COLOURS = ("#2a78b8", "#d97a00", "#23303f", "#8793a1")
CHINESE = Path(__file__).parent / "fonts" / "NotoSansCJKsc-subset.otf"


@cache
def chinese() -> tuple[str, ...]:
    """Fonts that have Latin and Chinese characters: give them to matplotlib as `fontfamily` of a text.

    The Chinese font is one of this repository, so that figures look the same on every machine. See `has_glyphs`.
    """
    name = "Chinese subset"  # not the font's own name, which an installed font may have
    font_manager.fontManager.ttflist.append(font_manager.FontEntry(fname=str(CHINESE), name=name))
    return "DejaVu Sans", name


def has_glyphs(text: str) -> bool:
    """Whether the Chinese font has all characters of a text."""
    return set(map(ord, text)) <= _glyphs()


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(font_manager.get_font(str(CHINESE)).get_charmap())


def box(axes: Axes, x: float, y: float, label: str, fill: str = FILL, size: float = 9) -> Text:
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

    There is a group of bars for each kind, which the rest of the metric names: a bar for each precision, and a hatched
    one with its number for the best negative control. label: of the axis.
    """
    rows = [row for row in rows if row["metric"].startswith(metric) and row["threshold"] is not None]
    kinds = list(dict.fromkeys(row["metric"] for row in rows))
    precisions = list(dict.fromkeys(row["precision"] for row in rows if "controls" not in row))
    figure = Figure(figsize=(9, 3.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    width = 0.8 / (len(precisions) + 1)
    for place, precision in enumerate(precisions):
        values = [(kinds.index(row["metric"]), row["value"]) for row in rows if row["precision"] == precision]
        places = [x - 0.4 + (place + 0.5) * width for x, _ in values]
        axes.bar(places, [y for _, y in values], width, color=PRECISIONS.get(precision, COLOURS[0]), label=precision)
    controls = {
        kind: max((row["value"] for row in rows if row["metric"] == kind and "controls" in row), default=0)
        for kind in kinds
    }
    places = [x + 0.4 - 0.5 * width for x in range(len(kinds))]
    hatched = {"color": "white", "edgecolor": LINE, "hatch": "////", "label": "best negative control"}
    axes.bar(places, list(controls.values()), width, **hatched)
    for x, y in zip(places, controls.values(), strict=True):
        axes.text(x, y + 0.02, number(y), ha="center", fontsize=9, color=INK)
    axes.set_xticks(range(len(kinds)), [kind.removeprefix(metric) for kind in kinds], color=INK)
    axes.set_ylabel(label, color=INK)
    axes.set_ylim(0, 1.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
    return figure


def quality_bars(rows: Iterable[Mapping]) -> Figure:
    """A panel for each metric of quality rows: a bar for each precision and a hatched one for the control, and the
    threshold as a dotted line. The title has the range of the precisions and the value of the control."""
    rows = list(rows)
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    figure = Figure(figsize=(9, 2.2 * -(-len(metrics) // 3)), dpi=110, layout="constrained")
    panels = figure.subplots(-(-len(metrics) // 3), 3, squeeze=False).ravel()
    for axes in panels[len(metrics) :]:
        axes.axis("off")
    for axes, metric in zip(panels, metrics, strict=False):
        of_metric = [row for row in rows if row["metric"] == metric]
        bars = {row["precision"]: row["value"] for row in of_metric if "controls" not in row}
        axes.bar(list(bars), list(bars.values()), color=[PRECISIONS.get(name, COLOURS[0]) for name in bars])
        result = " to ".join(dict.fromkeys(number(value, 2) for value in (min(bars.values()), max(bars.values()))))
        for row in of_metric:
            if "controls" in row:
                axes.bar("control", row["value"], color="white", edgecolor=LINE, hatch="////")
                axes.axhline(row["threshold"], color=INK, linestyle=":", linewidth=1)
                result += f", control {number(row['value'], 2)}"
        axes.set_title(f"{metric}\n{result} ({of_metric[0]['better']} is better)", fontsize=9, color=INK)
        axes.tick_params(labelsize=9)
    return figure


def speed_bars(rows: Iterable[Mapping], workloads: Mapping[str, str]) -> Figure:
    """The speed rows (`utils.bench`) of some workloads, each with its title: a panel for each, a bar for each runtime.

    A bar's length is the median time. The fastest is at the top, and each has its ratio to the fastest PyTorch of the
    panel. OpenVINO's bars have the colours of their precisions, all others are grey. Raises ValueError for a workload
    without a row.
    """
    rows, panels = list(rows), {}
    known = sorted({row["workload"] for row in rows})
    for workload, title in workloads.items():
        panels[title] = sorted((row for row in rows if row["workload"] == workload), key=lambda row: row["median_ms"])
        if not panels[title]:
            raise ValueError(f"No row has the workload {workload!r}. There are: {', '.join(known)}.")
    heights = [0.6 + 0.28 * len(own) for own in panels.values()]
    figure = Figure(figsize=(9, sum(heights)), dpi=110, layout="constrained")
    axes_of = figure.subplots(len(panels), height_ratios=heights, squeeze=False).ravel()
    for axes, (title, own) in zip(axes_of, panels.items(), strict=True):
        names = [f"{row['runtime']} {row['precision']}" for row in own]
        bars_of(axes, own, names, "median_ms", " ms")
        axes.set_xlabel("median time, ms (shorter is better)", fontsize=9, color=INK)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
    return figure


def bars_of(axes: Axes, rows: Sequence[Mapping], names: Sequence[str], field: str, unit: str = "") -> None:
    """A bar for a field of each speed row, from top to bottom, with its number, its unit, and its ratio to the fastest
    PyTorch of the same workload, if there is one; field: "median_ms" or "throughput"."""
    values = [row[field] for row in rows]
    colours = [PRECISIONS.get(row["precision"], COLOURS[0]) if is_ours(row) else PEER for row in rows]
    bars = axes.barh(names, values, color=colours)
    labels = [f"{number(row[field])}{unit}{_ratio(row, rows, field)}" for row in rows]
    axes.bar_label(bars, labels, padding=4, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(values))
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def throughput_bars(rows: Iterable[Mapping]) -> Figure:
    """Tokens per second over all clients: a bar for each speed row, with its ratio to PyTorch where it has one.

    The workload of a row begins with the number of clients and a comma.
    """
    rows = list(rows)
    names = [f"{row['workload'].partition(',')[0]}, {row['runtime']} {row['precision']}" for row in rows]
    figure = Figure(figsize=(9, 0.8 + 0.32 * len(rows)), dpi=110, layout="constrained")
    axes = figure.subplots()
    bars_of(axes, rows, names, "throughput")
    axes.set_xlabel("tokens per second, all clients together (longer is better)", fontsize=9, color=INK)
    return figure


def throughput_thumbnail(rows: Iterable[Mapping], title: str) -> Figure:
    """A small picture: OpenVINO's tokens per second at INT4 against the number of clients; rows as above, those with a
    label are left out."""
    ours = [row for row in rows if (row["runtime"], row["precision"]) == ("openvino", "INT4") and not row.get("label")]
    speeds = {row["workload"].split()[0]: row["throughput"] for row in ours}
    figure = Figure(figsize=(4, 2.5), dpi=80, layout="constrained")
    axes = figure.subplots()
    bars = axes.bar(list(speeds), list(speeds.values()), color=PRECISIONS["INT4"])
    axes.bar_label(bars, [f"{speed:,.0f}" for speed in speeds.values()], fontsize=13, color=INK, padding=2)
    axes.set_title(title, fontsize=13, color=INK)
    axes.set_xlabel("clients at once", fontsize=13, color=INK)
    axes.set_ylim(0, 1.2 * max(speeds.values()))
    axes.set_yticks([])
    axes.tick_params(labelsize=13)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _ratio(row: Mapping, rows: Iterable[Mapping], field: str) -> str:
    """How many times as fast as the fastest PyTorch of the same workload a speed row is, as a text."""
    peers = [peer[field] for peer in rows if is_baseline(peer) and peer["workload"] == row["workload"]]
    if not peers:
        return ""
    ratio = row[field] / max(peers) if field == "throughput" else min(peers) / row[field]
    return f"   {number(ratio, 2)}x"
