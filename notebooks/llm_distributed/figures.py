"""The figures: who holds what, where the graph adds, memory by rank, and the order of stages.

`python -m notebooks.llm_distributed.figures` draws the committed pictures from the stored results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from notebooks.llm_distributed.pipeline.shares import Share
from notebooks.llm_distributed.pipeline.stages import Run
from utils import report
from utils.charts import FILL, INK, arrows, box
from utils.paths import ROOT, notebook_dir

RANK_COLOURS = ("#2a78b8", "#d97a00", "#5b8c3a", "#8d5aa8", "#b03a2e", "#8793a1")
PARTS = {
    "heads": "query heads",
    "kv_heads": "key and value heads",
    "columns": "MLP columns",
    "vocabulary": "vocabulary",
}
BAR_HEIGHT = 0.86  # of a row; half of it holds a number


def colour(rank: int) -> str:
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def cut_figure(plans: Sequence[Sequence[Share]]) -> Figure:
    """A panel for each plan: which rank holds which heads, columns and rows of the vocabulary."""
    figure = Figure(figsize=(9, 1.9 * len(plans)), dpi=110, layout="constrained")
    for axes, plan in zip(figure.subplots(len(plans), squeeze=False).ravel(), plans, strict=True):
        for place, part in enumerate(PARTS):
            total = max(getattr(share, part)[1] for share in plan)
            sharing = [getattr(share, part) for share in plan]
            for share in plan:
                first, end = getattr(share, part)
                level = sharing[: share.rank].count((first, end))  # ranks that hold the same lie one below the other
                height = BAR_HEIGHT / sharing.count((first, end))
                look = {"color": colour(share.rank), "edgecolor": "white", "linewidth": 1.5}
                middle = place - BAR_HEIGHT / 2 + height * (level + 0.5)
                axes.barh(middle, (end - first) / total, height, first / total, **look)
                text = f"{end - first:,}"
                label = {"ha": "center", "va": "center", "fontsize": 9, "color": "white"}
                axes.text((first + end) / 2 / total, middle, text, **label)
        axes.set_yticks(range(len(PARTS)), PARTS.values(), fontsize=9, color=INK)
        axes.invert_yaxis()
        axes.set_xticks([])
        axes.set_xlim(0, 1)
        axes.spines[:].set_visible(False)
        names = [f"rank {share.rank}" for share in plan]
        handles = [axes.barh(0, 0, color=colour(share.rank)) for share in plan]
        axes.legend(handles, names, fontsize=9, frameon=False, ncols=len(plan), loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def graph_figure(ranks: int = 2) -> Figure:
    """A layer on its way through two ranks: what each computes alone, and where they add."""
    figure = Figure(figsize=(9, 2.6), dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 3)
    axes.axis("off")
    for rank in range(ranks):
        y = 2.45 - 1.9 * rank
        stream = box(axes, 0.85, y, "residual\nstream")
        attention = box(axes, 2.5, y, f"own heads,\no_proj (rank {rank})", _pale(rank))
        reduce = box(axes, 4.35, 1.5, "AllReduce", "#ffe3bd")
        mlp = box(axes, 6.2, y, f"own columns,\ndown_proj (rank {rank})", _pale(rank))
        again = box(axes, 8.05, 1.5, "AllReduce", "#ffe3bd")
        end = box(axes, 9.4, y, "next\nlayer", FILL)
        arrows(axes, [stream, attention, reduce, mlp, again, end])
    axes.text(4.35, 2.2, "+ residual", ha="center", fontsize=9, color=INK)
    axes.text(8.05, 2.2, "+ residual", ha="center", fontsize=9, color=INK)
    return figure


def _pale(rank: int) -> str:
    return ("#dbe8f5", "#fbe6cc", "#e3f1dc")[rank % 3]


def memory_figure(memory: Mapping[str, Sequence[Mapping]], size: tuple[float, float] = (9, 2.4)) -> Figure:
    """Private memory of each process. memory: rows of `measuring.speed.memory`, by the name of the layout."""
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    axes = figure.subplots()
    bars = [(name, rank, row["private_mb"]) for name, rows in memory.items() for rank, row in enumerate(rows)]
    labels = [name if len(memory[name]) == 1 else f"{name}, rank {rank}" for name, rank, _ in bars]
    colours = [INK if len(memory[name]) == 1 else colour(rank) for name, rank, _ in bars]
    drawn = axes.barh(labels, [mb for *_, mb in bars], color=colours)
    axes.bar_label(drawn, [f"{mb:,.0f} MB" for *_, mb in bars], padding=4, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(mb for *_, mb in bars))
    axes.set_xlabel("private memory of the process, MB (less is better)", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def split_figure(notes: Mapping) -> Figure:
    """The time of a token by layout, own work and time in the group. notes: of `measuring.speed.split_notes`."""
    figure = Figure(figsize=(9, 2.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    prefix = "ms of a token, "
    found = [name.removeprefix(prefix) for name in notes if name.startswith(prefix) and "predicted" not in name]
    whole, group = ([notes[start + name] for name in found] for start in (prefix, "of these in the group, "))
    own = [all_ms - group_ms for all_ms, group_ms in zip(whole, group, strict=True)]
    axes.barh(found, own, color=colour(0), label="own work")
    drawn = axes.barh(found, group, left=own, color=colour(1), label="in the group: exchange and waiting")
    axes.bar_label(drawn, [f"{ms:.1f} ms" for ms in whole], padding=4, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(whole))
    axes.set_xlabel("time of a token, ms (less is better)", fontsize=9, color=INK)
    axes.legend(fontsize=9, frameon=False, loc="lower right", bbox_to_anchor=(1, 0.3))
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def order_figure(run: Run, calls: int) -> Figure:
    """The first calls of each stage in the order in which they began, a colour for each sequence."""
    figure = Figure(figsize=(9, 1.5), dpi=110, layout="constrained")
    axes = figure.subplots()
    begun = sorted((begin, stage, sequence) for stage, line in enumerate(run.timeline) for sequence, begin, _ in line)
    for place, (_, stage, sequence) in enumerate(begun[: calls * len(run.timeline)]):
        axes.barh(stage, 0.9, 0.7, place, color=colour(sequence))
    axes.set_yticks(range(len(run.timeline)), [f"stage {stage}" for stage in range(len(run.timeline))])
    axes.invert_yaxis()
    axes.set_xlabel("calls, in the order in which they began", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def stored_memory(notes: Mapping) -> dict[str, list[dict]]:
    """The memory of the layouts from the notes of the stored results, for `memory_figure`."""
    found: dict[str, list[dict]] = {}
    for name, value in notes.items():
        if name.startswith("private MB, "):
            layout, _, _ = name.removeprefix("private MB, ").partition(", rank")
            found.setdefault(layout, []).append({"private_mb": value})
    return found


def main() -> None:
    folder = notebook_dir(__spec__.name)
    memory = stored_memory(report.load(ROOT / "results" / "llm_distributed.json")["notes"])
    memory_figure(memory).savefig(folder / "memory.png")
    small = memory_figure(memory, (4, 2.5))
    small.axes[0].set_xlabel("memory of a process, MB", fontsize=9)
    small.savefig(folder / "thumbnail.jpg", dpi=80)
    print("Written to memory.png and thumbnail.jpg.")


if __name__ == "__main__":
    main()
