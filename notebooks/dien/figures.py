"""Pictures: the network, the attention over one history, and its average over many.

`python -m notebooks.dien.figures` draws thumbnail.jpg with the tiny model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from utils.charts import FILL, INK, LINE, PICTURE, TEXT, VOICE, arrows, box

BAR = "#d97a00"
LAYERS = "#fff1dc"
CARTOONS = ("Lion King, The (1994)", "Aladdin (1992)", "Beauty and the Beast (1991)", "Toy Story (1995)")


def network_picture() -> Figure:
    """The network for a history of three items: all that the last layers read, and the auxiliary loss."""
    figure = Figure(figsize=(9, 5.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.5, 6.85), ylim=(-1.05, 4.45))
    axes.axis("off")

    # The history, its interests, and their evolution
    columns = []
    for step in range(3):
        item = box(axes, step, 0, f"movie {step + 1}\n[36]", PICTURE)
        gru = box(axes, step, 1.25, "GRU\n[36]", FILL)
        weight = box(axes, step, 2.4, f"attention\n$a_{step + 1}$", TEXT)
        augru = box(axes, step, 3.75, "AUGRU\n[36]", LAYERS)
        arrows(axes, [item, gru, weight, augru])
        columns.append((item, gru, weight, augru))
    for place, (before, after) in enumerate(pairwise(columns)):
        arrows(axes, [before[1], after[1]])
        arrows(axes, [before[3], after[3]])
        loss = box(axes, place + 0.5, 0.62, "?", VOICE)
        arrows(axes, [before[1], loss])
        arrows(axes, [after[0], loss])

    # What the last layers read
    candidate = box(axes, 3.35, 2.4, "candidate\n[36]", PICTURE)
    last_state = box(axes, 5.05, 3.75, "last state [36]", LAYERS)
    user = box(axes, 5.05, 3.1, "user [18]", PICTURE)
    again = box(axes, 5.05, 2.4, "candidate [36]", PICTURE)
    product = box(axes, 5.05, 1.6, "candidate × sum [36]", FILL)
    total = box(axes, 5.05, 0.65, "sum of the movies [36]", FILL)
    last = box(axes, 6.4, 2.05, "dense 200\nDice\ndense 80\nDice\ndense 2\nsoftmax", FILL)
    click = box(axes, 6.4, 3.75, "probability\nof a click", TEXT)
    for feature in (last_state, again, product, user, total):
        arrows(axes, [feature, last])
    arrows(axes, [columns[-1][3], last_state])
    arrows(axes, [candidate, again])
    arrows(axes, [candidate, product])
    arrows(axes, [total, product])
    arrows(axes, [last, click])

    # Lines that reach all steps: the candidate to the attention, the movies to their sum
    line = {"color": LINE, "linewidth": 0.9}
    axes.plot([-0.2, 3.35, 3.35], [3.05, 3.05, 2.62], **line)
    axes.plot([0, 5.05], [-0.45, -0.45], **line)
    head = {"arrowstyle": "-|>", **line, "shrinkA": 0, "shrinkB": 0}
    for step in range(3):
        axes.annotate("", (step - 0.2, 2.6), (step - 0.2, 3.05), arrowprops=head)
        axes.plot([step, step], [-0.2, -0.45], **line)
    axes.annotate("", (5.05, 0.46), (5.05, -0.45), arrowprops=head)
    note = "?  auxiliary loss, in training only: does this state expect the next movie?"
    axes.text(-0.4, -0.95, note, fontsize=9, color=INK)
    return figure


def attention_picture(titles: Sequence[str], attention: np.ndarray, candidate: str, steps: int | None = None) -> Figure:
    """Bars of the attention [n] over the last n titles of a history, oldest on top, for one candidate.

    steps: how many titles the whole history has, by default n.
    """
    figure = Figure(figsize=(8, 1.1 + 0.26 * len(titles)), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(titles)), attention, color=BAR)
    axes.set_xlim(0, max(0.6, 1.05 * max(attention)))  # alike for most candidates
    axes.axvline(1 / (steps or len(titles)), color=LINE, linestyle="--", linewidth=0.9)
    axes.set_yticks(range(len(titles)), titles, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.tick_params(labelsize=9)
    axes.set_xlabel("attention weight (dashed: equal shares)", fontsize=9, color=INK)
    axes.set_title(f"Candidate: {candidate}", fontsize=10, color=INK, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def profile_picture(by_position: np.ndarray, shares: dict[str, float]) -> Figure:
    """Left: the average attention at each place of the history. Right: named shares, as bars with their values."""
    figure = Figure(figsize=(9, 3), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    places = np.arange(1, len(by_position) + 1)
    left.bar(places, by_position, color=BAR)
    left.axhline(1 / len(places), color=LINE, linestyle="--", linewidth=0.9)
    left.set_xticks([1, 10, 20, 30], ["1\noldest", "10", "20", "30\nlatest"])
    left.set_xlabel("place in the history", fontsize=9, color=INK)
    left.set_ylabel("average attention weight", fontsize=9, color=INK)
    left.set_title("Attention by place (dashed: equal shares)", fontsize=10, color=INK, loc="left")
    bars = right.barh(list(shares), list(shares.values()), color=[BAR, BAR, LINE][: len(shares)])
    right.bar_label(bars, [f"{share:.1%}" for share in shares.values()], padding=4, fontsize=9, color=INK)
    right.invert_yaxis()
    right.set_xlim(0, 1.3 * max(shares.values()))
    right.set_xticks([])
    right.set_title("On movies of the candidate's genre", fontsize=10, color=INK, loc="left")
    for axes in (left, right):
        axes.tick_params(labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def ranking_thumbnail(history: Sequence[str], ranked: Sequence[str], path: Path) -> None:
    """A small picture: some titles of a history, and the titles that are ranked first after it."""
    figure = Figure(figsize=(4, 2.5), dpi=80)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    for x, head, titles, colour in ((0.04, "seen", history, INK), (0.54, "next", ranked, BAR)):
        axes.text(x, 0.9, head, fontsize=15, weight="bold", color=colour, va="center")
        for place, title in enumerate(titles[:4]):
            axes.text(x, 0.7 - 0.19 * place, _short(title), fontsize=11.5, color=INK, va="center")
    axes.annotate("", (0.52, 0.42), (0.45, 0.42), arrowprops={"arrowstyle": "-|>", "color": LINE, "linewidth": 2})
    figure.savefig(path)


def _short(title: str, length: int = 15) -> str:
    """A title without its year and its ending, cut to a length."""
    name = title.partition(" (")[0].partition(":")[0].removesuffix(", The")
    return name if len(name) <= length else f"{name[: length - 1]}…"


def main() -> None:
    from notebooks.dien import convert
    from notebooks.dien.data import movielens
    from notebooks.dien.pipeline import ClickModel

    movies = movielens()
    seen = [movies.movies.index(title) for title in CARTOONS]
    history, category = np.array(seen) + 1, movies.category
    candidates = movies.candidates(history, 500)
    repeated = ([history] * len(candidates), [category[history]] * len(candidates))
    model = ClickModel(convert.prepare("tiny"))
    scores = model.score([1] * len(candidates), candidates, category[candidates], *repeated)
    ranked = [movies.movies[movie - 1] for movie in candidates[np.argsort(-scores)]]
    ranking_thumbnail(CARTOONS, ranked, Path(__file__).with_name("thumbnail.jpg"))


if __name__ == "__main__":
    main()
