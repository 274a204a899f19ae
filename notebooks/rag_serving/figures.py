"""Figures: how a question becomes an answer, a map of passages, how HNSW walks, and what each search finds.

`python -m notebooks.rag_serving.figures` draws thumbnail.jpg and answers.png from the notebook's results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from utils import report
from utils.charts import COLOURS, INK, LINE, PEER, PICTURE, TEXT, VOICE, arrows, box
from utils.paths import ROOT, notebook_dir
from utils.tables import number

SEARCHES = ("#6c3483", "#1e8449", "#b03a2e", *COLOURS[:3])  # colours of the kinds of search


def flow() -> Figure:
    """What happens once to a document, and what happens to each question."""
    figure = Figure(figsize=(9, 2.9), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 34)
    axes.axis("off")
    document = [
        box(axes, 8, 28, "document", TEXT),
        box(axes, 28, 28, "passages of\n100 tokens"),
        box(axes, 50, 28, "vector [384]\nand words", PICTURE),
        box(axes, 76, 28, "PostgreSQL, pgvector:\none transaction", VOICE),
    ]
    question = [
        box(axes, 8, 7, "question", TEXT),
        box(axes, 25, 7, "vector [384]\nand words", PICTURE),
        box(axes, 48, 7, "HNSW and BM25,\nranks fused:\none SQL statement", VOICE),
        box(axes, 71, 7, "3 passages,\nquoted as data"),
        box(axes, 91, 7, "language\nmodel: answer", TEXT),
    ]
    arrows(axes, document)
    arrows(axes, question)
    arrows(axes, [document[-1], question[2]])
    axes.text(0, 33, "once for each document", fontsize=9, color=LINE, va="top")
    axes.text(0, 14, "for each question", fontsize=9, color=LINE)
    return figure


def passage_map(vectors: np.ndarray, groups: Sequence[str], question: np.ndarray, nearest: Sequence[int]) -> Figure:
    """Passages in two dimensions (principal components), coloured by group, with a question and its nearest passages.

    vectors: [passages, dimensions]; groups: of each passage; question: [dimensions]; nearest: numbers of passages.
    """
    mean = vectors.mean(0)
    axes_of_map = np.linalg.svd(vectors - mean, full_matrices=False)[2][:2].T  # [dimensions, 2]
    places, asked = (vectors - mean) @ axes_of_map, (question - mean) @ axes_of_map
    figure = Figure(figsize=(7, 2.8), dpi=110, layout="constrained")
    axes = figure.subplots()
    for colour, group in zip(COLOURS, dict.fromkeys(groups), strict=False):
        own = np.array([one == group for one in groups])
        axes.scatter(*places[own].T, s=14, color=colour, label=group, alpha=0.7)
    for place in places[list(nearest)]:
        axes.plot([asked[0], place[0]], [asked[1], place[1]], color=INK, linewidth=0.8)
    axes.scatter(*asked, marker="*", s=160, color="#b03a2e", label="the question", zorder=3)
    axes.set_xlabel("first principal component", fontsize=9, color=INK)
    axes.set_ylabel("second", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.legend(fontsize=9, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def walk() -> Figure:
    """HNSW in one picture: few points with long links above, all points with short links below, and a search."""
    rng = np.random.default_rng(3)
    points = rng.uniform(0, 1, (48, 2))
    layers = [np.arange(5), np.arange(16), np.arange(48)]
    target = np.array([0.86, 0.2])
    figure = Figure(figsize=(9, 2.4), dpi=110, layout="constrained")
    at = 0
    panels = figure.subplots(1, 3, sharex=True, sharey=True)  # a point has the same place in each
    for axes, own, title in zip(panels, layers, ("top layer", "middle layer", "all vectors"), strict=True):
        neighbours = {}
        for one in own:
            distances = np.linalg.norm(points[own] - points[one], axis=1)
            neighbours[one] = own[np.argsort(distances)[1:4]]
            for other in neighbours[one]:
                axes.plot(*points[[one, other]].T, color="#d5dbe2", linewidth=0.7, zorder=1)
        path = [at]
        while True:
            linked = [*neighbours[path[-1]], *(one for one in own if path[-1] in neighbours[one])]
            best = min(linked, key=lambda one: np.linalg.norm(points[one] - target))
            if np.linalg.norm(points[best] - target) >= np.linalg.norm(points[path[-1]] - target):
                break
            path.append(best)
        at = path[-1]
        axes.scatter(*points[own].T, s=12, color=COLOURS[0], zorder=2)
        axes.plot(*points[path].T, color=COLOURS[1], linewidth=2, marker="o", markersize=4, zorder=3)
        axes.scatter(*target, marker="*", s=120, color="#b03a2e", zorder=4)
        axes.set_title(f"{title}, steps: {len(path) - 1}", fontsize=10, color=INK, loc="left")
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def token_map(cosines: np.ndarray, question: Sequence[str], passage: Sequence[str]) -> Figure:
    """The cosine of every token of a question [rows] with every token of a passage [columns], the largest of each row
    in a frame; their mean is MaxSim."""
    figure = Figure(figsize=(9, 0.9 + 0.22 * len(question)), dpi=110, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(cosines, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, best in enumerate(cosines.argmax(1)):
        axes.add_patch(Rectangle((best - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#d97a00", linewidth=1.8))
    axes.set_xticks(range(len(passage)), passage, rotation=90, fontsize=9, color=INK)
    axes.set_yticks(range(len(question)), question, fontsize=9, color=INK)
    axes.set_title(f"MaxSim {cosines.max(1).mean():.3f}", fontsize=10, color=INK, loc="left")
    figure.colorbar(image, ax=axes, label="cosine", pad=0.01).ax.tick_params(labelsize=9)
    return figure


def recall_figure(found: Mapping[str, Sequence[float]], width: float = 9) -> Figure:
    """Lines of recall@k against k from 1 on, one for each kind of search; controls are grey."""
    figure = Figure(figsize=(width, 2.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    colours, dashes = iter(SEARCHES), iter(("--", ":", "-.", (0, (1, 4)), (0, (5, 1))))
    for name, values in found.items():
        if "control" in name:
            look = {"color": LINE, "linestyle": next(dashes)}
        else:
            look = {"color": next(colours), "linewidth": 2}
        axes.plot(range(1, len(values) + 1), values, label=name, marker="o", markersize=3, **look)
    axes.set_ylim(0, 1)
    axes.set_xlabel("k: passages that are looked at", fontsize=9, color=INK)
    axes.set_ylabel("recall@k", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.legend(fontsize=9, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def results_figure(quality: Sequence[Mapping], width: float = 9, height: float = 2.6) -> Figure:
    """Bars of the notebook's results: right answers with and without passages, at the shipped precision."""
    rows = [row for row in quality if row["metric"].startswith("right answers")]
    ours = next(row for row in rows if row["precision"] == "INT8")
    bars = {"3 passages": ours["value"]} | {row["control"]: row["value"] for row in rows if "controls" in row}
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.subplots()
    shown = axes.barh(
        list(bars), [100 * value for value in bars.values()], color=[COLOURS[1], *[PEER] * (len(bars) - 1)]
    )
    axes.bar_label(shown, [f"{number(100 * value, 2)} %" for value in bars.values()], padding=3, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 115)
    axes.set_title("right answers", fontsize=10, color=INK, loc="left")
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    from io import BytesIO

    from PIL import Image

    folder = notebook_dir(__package__)
    quality = report.load(ROOT / "results" / f"{folder.name}.json")["quality"]
    results_figure(quality).savefig(folder / "answers.png")
    buffer = BytesIO()
    results_figure(quality, 4, 2.5).savefig(buffer, dpi=80)
    Image.open(buffer).convert("RGB").resize((320, 200)).save(folder / "thumbnail.jpg", quality=85)


if __name__ == "__main__":
    main()
