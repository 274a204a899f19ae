"""Figures: the way of a prompt through the C library, and what a token costs in each language.

`python -m notebooks.c_interop.figures` draws way.png and, from the notebook's results, languages.png and
thumbnail.jpg.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from utils import report
from utils.charts import COLOURS, FILL, INK, PICTURE, TEXT, arrows, box
from utils.paths import ROOT, notebook_dir
from utils.tables import number

OUTSIDE = "microseconds per token outside the model, "  # the notes that the notebook stores, followed by a language


def way() -> Figure:
    """Programs above, llm.h below them, and the three models that llm.c runs."""
    figure = Figure(figsize=(9, 2.9), dpi=110, layout="constrained")
    axes = figure.subplots()
    programs = ["C", "C# (P/Invoke)", "Rust (extern)", "Go (cgo)", "Node (Node-API)", "Python (ctypes)"]
    header = box(axes, 2.5, 1, "llm.h: open, generate with callback, cancel, close, last error", TEXT)
    for i, name in enumerate(programs):
        arrows(axes, [box(axes, i, 2, name, FILL), header])
    labels = ["prompt", "tokenizer", "language model,\nonce for each token", "detokenizer", "whole characters"]
    places = [-0.2, 1, 2.5, 4, 5.2]
    fills = [FILL, PICTURE, PICTURE, PICTURE, FILL]
    models = [box(axes, x, -0.2, label, fill) for x, label, fill in zip(places, labels, fills, strict=True)]
    arrows(axes, models)
    arrows(axes, [header, models[2]])
    axes.text(5.6, 0.45, "llm.c over libopenvino_c", ha="right", fontsize=9, color=INK)
    axes.set_xlim(-0.7, 5.8)
    axes.set_ylim(-0.7, 2.4)
    axes.axis("off")
    return figure


def overheads(notes: Mapping[str, float]) -> Figure:
    """A bar for each language: the microseconds that a token takes outside the model."""
    rows = {name.removeprefix(OUTSIDE): value for name, value in notes.items() if name.startswith(OUTSIDE)}
    if not rows:
        raise ValueError("The notes have no language. Run the notebook where at least a C compiler is installed.")
    figure = Figure(figsize=(9, 0.7 + 0.28 * len(rows)), dpi=110, layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(list(rows), list(rows.values()), color=COLOURS[0])
    axes.bar_label(bars, [f"{number(value)} µs" for value in rows.values()], padding=4, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max(rows.values()))
    axes.set_xlabel("µs per token outside the model", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    folder = notebook_dir(__spec__.name)
    way().savefig(folder / "way.png")
    notes = report.load(ROOT / "results" / "c_interop.json").get("notes", {})
    overheads(notes).savefig(folder / "languages.png")
    small = overheads(notes)
    small.set_size_inches(4, 2.5)
    small.savefig(folder / "thumbnail.jpg", dpi=80)  # 320 x 200 pixels
    print("Written to way.png, languages.png and thumbnail.jpg.")


if __name__ == "__main__":
    main()
