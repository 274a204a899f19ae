"""Figures: why continuous batching is faster, and throughput against the number of clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, LINE, PROMPT, ANSWER = "#23303f", "#8793a1", "#8793a1", "#d97a00"
COLOURS = {"openvino": "#d97a00", "llama.cpp": "#3a6ea5", "transformers": "#8793a1"}
STYLES = {"": "-", "prefix caching off": ":"}
# Six requests: (step of arrival, tokens of the answer)
REQUESTS = ((0, 7), (0, 3), (1, 9), (1, 2), (3, 5), (4, 4))


def batching_picture(seats: int = 3) -> Figure:
    """Six requests on a server with `seats` seats: static batches above, continuous batching below."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, title, starts in (
        (panels[0], "in whole batches: the longest answer keeps the others waiting", _in_batches(seats)),
        (panels[1], "continuous batching: a seat is given on as soon as it is free", _continuously(seats)),
    ):
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        for number, ((_, length), (seat, start)) in enumerate(zip(REQUESTS, starts, strict=True)):
            axes.barh(seat, 1, left=start, color=PROMPT, edgecolor="white")
            for step in range(length):
                axes.barh(seat, 1, left=start + 1 + step, color=ANSWER, edgecolor="white")
            axes.text(start + 0.5, seat, str(number + 1), ha="center", va="center", color="white", fontsize=8)
        axes.set_yticks(range(seats), [f"seat {seat + 1}" for seat in range(seats)], fontsize=8, color=INK)
        axes.invert_yaxis()
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[1].set_xlabel("steps of the model (grey: a prompt is read, orange: a token is generated)", color=INK)
    return figure


def _in_batches(seats: int) -> list[tuple[int, int]]:
    """(seat, first step) of each request."""
    starts, begin = [], 0
    for first in range(0, len(REQUESTS), seats):
        batch = REQUESTS[first : first + seats]
        begin = max([begin, *(arrival for arrival, _ in batch)])
        starts += [(seat, begin) for seat in range(len(batch))]
        begin += 1 + max(length for _, length in batch)
    return starts


def _continuously(seats: int) -> list[tuple[int, int]]:
    free, starts = [0] * seats, []
    for arrival, length in REQUESTS:
        seat = min(range(seats), key=lambda one: max(free[one], arrival))
        start = max(free[seat], arrival)
        starts.append((seat, start))
        free[seat] = start + 1 + length
    return starts


def load_picture(rows: Iterable[Mapping]) -> Figure:
    """Tokens per second over all clients, and the median time to the first token, against the number of clients.

    rows: speed rows whose workload begins with the number of clients.
    """
    lines: dict[tuple[str, str, str], list[tuple[int, float, float]]] = {}
    for row in rows:
        setting = row.get("label", "").rpartition("first token p99")[0].rstrip(", ")
        point = (int(row["workload"].split()[0]), row["throughput"], row["median_ms"])
        lines.setdefault((row["runtime"], row["precision"], setting), []).append(point)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    speed, latency = figure.subplots(1, 2)
    for (runtime, precision, setting), points in lines.items():
        clients, speeds, latencies = zip(*sorted(points), strict=True)
        style = {"INT8": "--", "FP16": "-."}.get(precision, STYLES.get(setting, "-"))
        look = {"color": COLOURS.get(runtime, INK), "linestyle": style, "marker": "o", "markersize": 4}
        label = f"{runtime} {precision}" + (f", {setting}" if setting else "")
        speed.plot(clients, speeds, label=label, **look)
        latency.plot(clients, latencies, **look)
    _finish(speed, "tokens per second, all clients together")
    _finish(latency, "time to the first token, median, ms")
    speed.legend(fontsize=7)
    return figure


def _finish(axes: Axes, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title, fontsize=10, color=INK)
    axes.set_xlabel("clients at once", color=INK)
    axes.set_xticks([1, 4, 16, 64], ["1", "4", "16", "64"])
    axes.minorticks_off()
    axes.grid(color="#e8edf3")
