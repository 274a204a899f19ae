"""Figures: why continuous batching is faster, streams of several clients over time, throughput under load.

`python -m notebooks.deepseek_serving.figures` draws thumbnail.jpg from the stored measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from utils.charts import COLOURS, INK, LINE, PRECISIONS, throughput_thumbnail
from utils.charts import throughput_bars as throughput_bars  # the notebook shows it

PROMPT, ANSWER = LINE, "#d97a00"
PEERS = {"llama.cpp": INK, "transformers serve": LINE}  # the colours of their lines
# Six requests: (step of arrival, tokens of the answer)
REQUESTS = ((0, 7), (0, 3), (0, 9), (1, 2), (3, 5), (4, 4))


def batching_picture(slots: int = 3) -> Figure:
    """Six requests on a server with `slots` slots: whole batches above, continuous batching below."""
    figure = Figure(figsize=(9, 3.8), dpi=110, layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, title, starts in (
        (panels[0], "whole batches: the longest answer keeps the others waiting", _in_batches(slots)),
        (panels[1], "continuous batching: the next request takes a slot as soon as it is free", _continuously(slots)),
    ):
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        for number_of, ((_, length), (slot, start)) in enumerate(zip(REQUESTS, starts, strict=True), start=1):
            axes.barh(slot, 1, left=start, color=PROMPT, edgecolor="white")
            for step in range(length):
                axes.barh(slot, 1, left=start + 1 + step, color=ANSWER, edgecolor="white")
            axes.text(start + 0.5, slot, str(number_of), ha="center", va="center", color="white", fontsize=9)
        axes.set_yticks(range(slots), [f"slot {slot + 1}" for slot in range(slots)], fontsize=9, color=INK)
        axes.invert_yaxis()
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[1].set_xlabel("steps of the model (grey: a prompt is read; orange: a token is generated)", color=INK)
    return figure


def _in_batches(slots: int) -> list[tuple[int, int]]:
    """(slot, first step) of each request."""
    starts, begin = [], 0
    for first in range(0, len(REQUESTS), slots):
        batch = REQUESTS[first : first + slots]
        begin = max([begin, *(arrival for arrival, _ in batch)])
        starts += [(slot, begin) for slot in range(len(batch))]
        begin += 1 + max(length for _, length in batch)
    return starts


def _continuously(slots: int) -> list[tuple[int, int]]:
    free, starts = [0] * slots, []
    for arrival, length in REQUESTS:
        slot = min(range(slots), key=lambda each: max(free[each], arrival))
        start = max(free[slot], arrival)
        starts.append((slot, start))
        free[slot] = start + 1 + length
    return starts


def steps_picture(steps: Sequence[Mapping[str, str]]) -> Figure:
    """What each step of the engine generated; steps: the new text by the question that is answered."""
    questions = list(dict.fromkeys(question for step in steps for question in step))
    figure = Figure(figsize=(9, 0.6 + 0.6 * len(questions)), dpi=110, layout="constrained")
    axes = figure.subplots()
    for row, question in enumerate(questions):
        first = next(at for at, step in enumerate(steps) if question in step)
        axes.text(first, row - 0.28, question, va="bottom", fontsize=9, color=INK)
        for at, step in enumerate(steps):
            if question in step:
                look = {"height": 0.5, "color": "#ffe3bd", "edgecolor": ANSWER, "linewidth": 0.6}
                axes.barh(row, 0.94, left=at + 0.03, **look)
                label = step[question].strip() or "(end)"
                axes.text(at + 0.5, row, label, ha="center", va="center", fontsize=9, color=INK)
    axes.set_xticks([at + 0.5 for at in range(len(steps))], [str(at + 1) for at in range(len(steps))], fontsize=9)
    axes.set_yticks([])
    axes.set_xlim(0, len(steps))
    axes.set_ylim(len(questions) - 0.6, -0.7)
    axes.set_xlabel("step of the engine", fontsize=9, color=INK)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def streams_picture(runs: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """When text arrived, a panel for each run and a line for each of its clients.

    runs: by title, for each client the seconds from the start of the run to each piece of its text.
    """
    heights = [0.7 + 0.24 * len(clients) for clients in runs.values()]
    figure = Figure(figsize=(9, sum(heights) + 0.3), dpi=110, layout="constrained")
    panels = figure.subplots(len(runs), height_ratios=heights, sharex=True, squeeze=False).ravel()
    for axes, (title, clients) in zip(panels, runs.items(), strict=True):
        for row, arrivals in enumerate(clients):
            axes.barh(row, arrivals[0], height=0.5, color="#e8edf3")
            axes.plot(arrivals, [row] * len(arrivals), "|", color=ANSWER, markersize=11, markeredgewidth=1.3)
        axes.set_yticks(
            range(len(clients)), [f"client {row + 1}" for row in range(len(clients))], fontsize=9, color=INK
        )
        axes.set_ylim(len(clients) - 0.4, -0.6)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(labelsize=9)
    panels[-1].set_xlim(0, None)
    panels[-1].set_xlabel("seconds (grey: waiting for the first token; each mark: a piece of text arrives)", fontsize=9)
    return figure


def load_picture(rows: Iterable[Mapping]) -> Figure:
    """Tokens per second over all clients, and the median time to the first token, by the number of clients.

    rows: speed rows whose workload begins with the number of clients.
    """
    lines: dict[tuple[str, str, str], list[tuple[int, float, float]]] = {}
    for row in rows:
        point = (int(row["workload"].split()[0]), row["throughput"], row["median_ms"])
        lines.setdefault((row["runtime"], row["precision"], row.get("label", "")), []).append(point)
    figure = Figure(figsize=(9, 4.4), dpi=110, layout="constrained")
    speed, latency = figure.subplots(1, 2)
    for (runtime, precision, label), points in lines.items():
        clients, speeds, latencies = zip(*sorted(points), strict=True)
        colour = PEERS.get(runtime) or PRECISIONS.get(precision, COLOURS[0])
        look = {"color": colour, "linestyle": ":" if label else "-", "marker": "o", "markersize": 4}
        speed.plot(clients, speeds, label=f"{runtime} {precision}" + (f", {label}" if label else ""), **look)
        latency.plot(clients, latencies, **look)
    _finish(speed, "tokens per second, all clients together", (20, 50, 100, 200, 500, 1000))
    _finish(latency, "time to the first token, median, ms", (50, 200, 1000, 5000, 20000))
    figure.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def _finish(axes: Axes, title: str, ticks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title, fontsize=10, color=INK)
    axes.set_xlabel("clients at once", fontsize=9, color=INK)
    axes.set_xticks([1, 4, 16, 64], ["1", "4", "16", "64"])
    axes.set_yticks(ticks)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=9)
    axes.minorticks_off()
    axes.grid(color="#e8edf3")


def main() -> None:
    from utils import report

    stored = report.load(report.BENCH / "deepseek_serving.json")
    figure = throughput_thumbnail(stored["speed"], "tokens per second")
    figure.savefig(Path(__file__).with_name("thumbnail.jpg"))


if __name__ == "__main__":
    main()
