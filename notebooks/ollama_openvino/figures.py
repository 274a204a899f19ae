"""Figures: a request's way through the server, and the server's memory over time.

`python -m notebooks.ollama_openvino.figures` draws thumbnail.jpg from the stored measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from utils import charts
from utils.charts import INK, LINE, PRECISIONS, throughput_thumbnail

STEPS = {
    "Ollama client\n/api/chat, NDJSON": charts.PICTURE,
    "guard\nsize, depth, queue,\nlocal clients only": charts.FILL,
    "models in memory\nload, keep_alive,\nunload": charts.FILL,
    "engine\ncontinuous\nbatching": charts.VOICE,
}
DISK = {
    "Modelfile\nFROM, PARAMETER,\nSYSTEM": charts.TEXT,
    "package\ntar.gz of the IR": charts.TEXT,
    "store\nblobs by SHA-256,\nmanifests": charts.FILL,
}


def way_picture() -> Figure:
    """Above, the way of a request; below, the way of a model onto the disk of the server."""
    figure = Figure(figsize=(9, 2.9), dpi=110, layout="constrained")
    axes = figure.subplots()
    above = [charts.box(axes, x, 1, text, fill) for x, (text, fill) in enumerate(STEPS.items())]
    below = [charts.box(axes, x, 0, text, fill) for x, (text, fill) in enumerate(DISK.items())]
    charts.arrows(axes, above)
    charts.arrows(axes, below)
    charts.arrows(axes, [below[-1], above[2]])
    axes.text(2.08, 0.5, "unpacked once,\nby its digest", fontsize=9, color=INK, va="center")
    axes.set(xlim=(-0.5, len(STEPS) - 0.5), ylim=(-0.4, 1.4))
    axes.axis("off")
    return figure


def memory_picture(samples: Sequence[tuple[float, float]], events: Mapping[str, float]) -> Figure:
    """The memory of the server's process over time. samples: (seconds, MB). events: what happened at which second."""
    figure = Figure(figsize=(9, 2.8), dpi=110, layout="constrained")
    axes = figure.subplots()
    seconds, megabytes = zip(*samples, strict=True)
    axes.fill_between(seconds, megabytes, color=charts.PICTURE)
    axes.plot(seconds, megabytes, color=PRECISIONS["FP16"], linewidth=1.5)
    top = max(megabytes)
    for height, (text, second) in enumerate(events.items()):
        axes.axvline(second, color=LINE, linestyle=":", linewidth=1)
        axes.text(second, top * (1.36 - 0.11 * (height % 3)), f" {text}", fontsize=9, color=INK, va="center")
    axes.set_ylim(0, 1.45 * top)
    axes.set_xlim(0, seconds[-1] * 1.12)
    axes.set_xlabel("seconds", fontsize=9, color=INK)
    axes.set_ylabel("memory of the server, MB", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    from utils import report
    from utils.paths import ROOT

    stored = report.load(ROOT / "results" / "ollama_openvino.json")
    figure = throughput_thumbnail(stored["speed"], "Ollama clients, tokens per second")
    figure.savefig(Path(__file__).with_name("thumbnail.jpg"))


if __name__ == "__main__":
    main()
