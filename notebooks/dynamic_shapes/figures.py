"""Figures: a stream of requests, the first call of a new length, and Snippets on and off.

`python -m notebooks.dynamic_shapes.figures` draws thumbnail.jpg and stream.png from the notebook's results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from utils import report
from utils.charts import COLOURS, INK, PEER
from utils.compare import is_ours
from utils.paths import ROOT, notebook_dir
from utils.tables import number


def stream_figure(rows: Iterable[Mapping], width: float = 9) -> Figure:
    """A panel each for the p99 time, the whole time and the peak memory of a stream; a bar for each runtime."""
    rows = list(rows)
    percentiles = [row for row in rows if ": p99 of " in row["workload"]]
    whole = [row for row in rows if row["workload"].endswith(" requests") and ": p99 of " not in row["workload"]]
    panels = (
        ("p99, ms", percentiles, "median_ms", 1),
        ("all requests, s", whole, "median_ms", 1e-3),
        ("peak memory, MB", percentiles, "peak_rss_mb", 1),
    )
    figure = Figure(figsize=(width, 0.5 + 0.32 * len(percentiles)), dpi=110, layout="constrained")
    for i, (axes, (title, own, field, factor)) in enumerate(zip(figure.subplots(1, 3), panels, strict=True)):
        names = [row["runtime"].removeprefix("openvino ") for row in own]
        values = [row[field] * factor for row in own]
        colours = [COLOURS[1] if row["runtime"] == "openvino buckets" else PEER for row in own]
        colours = [COLOURS[0] if is_ours(row) and c == PEER else c for row, c in zip(own, colours, strict=True)]
        bars = axes.barh(names, values, color=colours)
        axes.bar_label(bars, [number(value) for value in values], padding=3, fontsize=9, color=INK)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.3 * max(values))
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.tick_params(labelsize=9, labelleft=i == 0)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def first_calls(times: Mapping[str, tuple[Sequence[float], Sequence[float]]], lengths: Sequence[int]) -> Figure:
    """A panel for each network: the time of the first and of the second call against the length."""
    figure = Figure(figsize=(9, 3), dpi=110, layout="constrained")
    for axes, (name, calls) in zip(figure.subplots(1, len(times), squeeze=False)[0], times.items(), strict=True):
        for samples, call, colour in zip(calls, ("first call", "second call"), (COLOURS[1], COLOURS[0]), strict=True):
            axes.plot(lengths, samples, color=colour, marker="o", markersize=3, label=call)
        axes.set_ylim(0)
        axes.set_title(name, fontsize=10, color=INK, loc="left")
        axes.set_xlabel("length", fontsize=9, color=INK)
        axes.set_ylabel("ms", fontsize=9, color=INK)
        axes.tick_params(labelsize=9)
        axes.legend(fontsize=9, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def snippets_figure(rows: Iterable[Mapping]) -> Figure:
    """How many times as long each network takes without Snippets: a point for the median of all shapes and precisions,
    a line from the lowest to the highest; static and dynamic."""
    times, networks = {}, []
    for row in rows:
        kind, _, state = row["runtime"].removeprefix("openvino ").partition(", Snippets ")
        if state:
            networks.append(row["workload"].partition(", batch")[0])
            times[networks[-1], kind, row["workload"], row["precision"], state] = row["median_ms"]
    ratios = defaultdict(list)
    for (network, kind, *setting, state), on in times.items():
        if state == "on":
            ratios[network, kind].append(times[(network, kind, *setting, "off")] / on)
    networks = list(dict.fromkeys(networks))
    figure = Figure(figsize=(9, 0.9 + 0.36 * len(networks)), dpi=110, layout="constrained")
    axes = figure.subplots()
    for kind, colour, offset in (("static", COLOURS[0], -0.13), ("dynamic", COLOURS[1], 0.13)):
        for y, network in enumerate(networks):
            own = ratios[network, kind]
            axes.plot([min(own), max(own)], [y + offset] * 2, color=colour, linewidth=1.5)
            axes.plot(np.median(own), y + offset, "o", color=colour, label=kind if not y else None)
    axes.axvline(1, color=INK, linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(networks)), networks)
    axes.invert_yaxis()
    axes.set_xlabel("time without Snippets / time with Snippets", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.legend(fontsize=9, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    folder = notebook_dir(__spec__.name)
    rows = report.load(ROOT / "results" / "dynamic_shapes.json")["speed"]
    stream_figure(rows).savefig(folder / "stream.png")
    small = stream_figure([row for row in rows if is_ours(row)], 4)
    small.axes[1].remove()
    small.set_size_inches(4, 2.5)
    small.savefig(folder / "thumbnail.jpg", dpi=80)
    print("Written to stream.png and thumbnail.jpg.")


if __name__ == "__main__":
    main()
