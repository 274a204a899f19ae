"""Figures of the notebook and the README: the network, the slices of a picture, and the accuracies.

`python -m notebooks.minicpm_v.figures` asks the tiny model about a picture, with and without slices, and draws
result.png of its answers.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from notebooks.minicpm_v import convert
from notebooks.minicpm_v.data import small_words
from notebooks.minicpm_v.pipeline import VisionChat
from notebooks.minicpm_v.pipeline.slicing import Plan, cut
from utils.charts import INK, LINE, PICTURE, PRECISIONS, TEXT, arrows, box
from utils.drawn_world.questions import Question

RESULT = Path(__file__).parent / "result.png"
POSTER = 30  # the picture of `small_words` that result.png shows
CUT_COLOUR = (217, 64, 0)  # of the lines between slices
RIGHT, WRONG = "#1e7b34", "#b03a2e"  # of answers
SMALL_WORDS, NO_SLICES = "accuracy, label", "slicing off"  # the metric that slicing is for, and its control


def network_picture() -> Figure:
    """From a picture and a question to the answer: slices, vision tower, resampler, language model."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    picture, model = box(axes, 0, 1.5, "picture", PICTURE), box(axes, 7.2, 1.5, "language\nmodel")
    for row, name in enumerate(("overview", "slice 1", "slice 2", "slice n")):
        y = 3 - row
        embeddings = box(axes, 5.6, y, "64 embeddings", PICTURE)
        chain = [picture, box(axes, 1.2, y, name, PICTURE), box(axes, 2.6, y, "vision tower")]
        arrows(axes, [*chain, box(axes, 4.05, y, "resampler"), embeddings, model])
    words = box(axes, 2.6, -1, "question", TEXT), box(axes, 6.2, -1, "embeddings of the words", TEXT)
    arrows(axes, [*words, model, box(axes, 8.35, 1.5, "answer", TEXT)])
    axes.text(3.4, 3.6, "the same parameters for every piece of the picture", ha="center", fontsize=9, color=INK)
    axes.set(xlim=(-0.5, 8.85), ylim=(-1.4, 3.9))
    axes.axis("off")
    return figure


def draw_slices(picture: Image.Image, grid: tuple[int, int]) -> Image.Image:
    """A copy of a picture with the cuts of a grid (columns, rows) drawn over it.

    grid: as in `slicing.Plan`, (0, 0) where the picture stays whole.
    """
    drawn = picture.convert("RGB")
    columns, rows = grid
    pen, thick = ImageDraw.Draw(drawn), max(1, round(max(drawn.size) / 250))
    for x in (round(drawn.width * i / columns) for i in range(1, columns)):
        pen.line((x, 0, x, drawn.height), CUT_COLOUR, thick)
    for y in (round(drawn.height * i / rows) for i in range(1, rows)):
        pen.line((0, y, drawn.width, y), CUT_COLOUR, thick)
    return drawn


def enlarged(picture: Image.Image, least: int) -> Image.Image:
    """A picture whose pixels are enlarged to squares, until its longer side has `least` pixels or more."""
    times = max(1, -(-least // max(picture.size)))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)


def tiles(slices: Sequence[Image.Image], columns: int, gap: int = 5) -> Image.Image:
    """Slices of one size in rows of `columns`, with white gaps between them."""
    width, height = slices[0].size
    rows = -(-len(slices) // columns)
    sheet = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), "white")
    for number, piece in enumerate(slices):
        row, column = divmod(number, columns)
        sheet.paste(piece, (column * (width + gap), row * (height + gap)))
    return sheet


def pieces_figure(picture: Image.Image, plan: Plan, answers: Mapping[bool, str] = {}, true: str = "") -> Figure:
    """What the model reads of a picture, in its own pixels: the overview on the left, the slices on the right.

    answers: by whether there were slices; they are green where they equal the `true` answer. A picture that stays
    whole has the overview alone.
    """
    overview, *slices = cut(picture, plan)
    width, height = plan.slice
    shown = {f"Without slices: {overview.width} x {overview.height} pixels": (overview, answers.get(False))}
    if slices:
        title = f"With slices, also: {len(slices)} pieces of {width} x {height} pixels"
        shown[title] = (tiles(slices, plan.grid[0]), answers.get(True))
    panel_height = 3.9 * picture.height / picture.width
    figure = Figure(figsize=(8.2, panel_height + (0.75 if answers else 0.35)), dpi=110, layout="constrained")
    panels = figure.subplots(1, 2)
    for axes in panels:
        axes.axis("off")
    for axes, (title, (image, answer)) in zip(panels, shown.items(), strict=False):
        axes.imshow(image, interpolation="nearest", aspect="auto")
        axes.set_title(title, fontsize=10, color=INK)
        if answer is not None:
            word, colour = ("right", RIGHT) if answer == true else ("wrong", WRONG)
            style = {"fontsize": 12, "ha": "center", "va": "top", "transform": axes.transAxes}
            axes.text(0.5, -0.03, f"answer: {answer} ({word})", color=colour, **style)
    return figure


def accuracy_figure(rows: Iterable[Mapping]) -> Figure:
    """The share of right answers to each kind of question: a bar for each precision, hatched ones for controls.

    rows: quality rows (`utils.compare`) of `measuring.quality`. The title has the small words read right with slices
    and without, at the precision that reads fewest.
    """
    rows = [row for row in rows if row["metric"].startswith("accuracy, ")]
    kinds = list(dict.fromkeys(row["metric"] for row in rows))
    precisions = list(dict.fromkeys(row["precision"] for row in rows if "controls" not in row))
    bars = {
        precision: {row["metric"]: row for row in rows if row["precision"] == precision} for precision in precisions
    }
    controls = [row for row in rows if "controls" in row]
    without = next(row for row in controls if (row["metric"], row["control"]) == (SMALL_WORDS, NO_SLICES))
    best = {}
    for row in controls:
        if row is not without and (row["metric"] not in best or row["value"] > best[row["metric"]]["value"]):
            best[row["metric"]] = row

    figure = Figure(figsize=(9, 3.7), dpi=110, layout="constrained")
    axes = figure.subplots()
    width = 0.8 / (len(precisions) + 1)
    for place, (precision, own) in enumerate(bars.items()):
        x = [kinds.index(metric) - 0.4 + (place + 0.5) * width for metric in own]
        axes.bar(x, [row["value"] for row in own.values()], width, color=PRECISIONS[precision], label=precision)
    hatched = {"color": "white", "edgecolor": LINE, "hatch": "///", "label": "best negative control (should be low)"}
    x = [kinds.index(metric) + 0.4 - 0.5 * width for metric in best]
    axes.bar(x, [row["value"] for row in best.values()], width, **hatched)

    fewest = min((own[SMALL_WORDS] for own in bars.values()), key=lambda row: row["value"])
    of = fewest["of"]
    counts = [f"{round(row['value'] * of)} of {of}" for row in (fewest, without)]
    axes.set_title(f"Small words read right: {counts[0]} with slices, {counts[1]} without", fontsize=11, color=INK)
    names = {"label": "small word", "sign": "large word", "relation": "yes or no"}
    kinds = [kind.removeprefix("accuracy, ") for kind in kinds]
    axes.bar(len(kinds), without["value"], width, **hatched | {"label": None})
    axes.text(len(kinds), without["value"] + 0.02, counts[1], ha="center", fontsize=10, color=WRONG)
    ticks = [*(names.get(kind, kind) for kind in kinds), "small word,\nno slices"]
    axes.set_xticks(range(len(ticks)), ticks, color=INK, fontsize=9)
    axes.set_xlabel("what the question asks for", fontsize=9, color=INK)
    axes.set_ylabel("share of right answers", fontsize=9, color=INK)
    axes.set_ylim(0, 1.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    return figure


def checked_answers(chat: VisionChat, picture: Image.Image, questions: Sequence[Question]) -> list[dict[bool, str]]:
    """The model's answers to questions about small words, by whether it had slices.

    Raises ValueError where the picture does not show what slices are for: a word that the model reads without them, or
    does not read with them.
    """
    answers = []
    for question in questions:
        own = {slicing: str(chat.ask(picture, question.text, slicing=slicing)) for slicing in (True, False)}
        if own[True] != question.answer or own[False] == question.answer:
            raise ValueError(
                f"The word is {question.answer}. The model reads {own[True]} with slices and {own[False]} without: "
                "take another picture."
            )
        answers.append(own)
    return answers


def main() -> None:
    """Write result.png."""
    chat = VisionChat(convert.prepare("tiny"))
    picture, questions = small_words(POSTER)
    answers = checked_answers(chat, picture, questions)
    figure = pieces_figure(picture, chat.plan(picture), answers[0], questions[0].answer)
    figure.suptitle(f"\u201c{questions[0].text}\u201d", fontsize=13, color=INK)
    whole = io.BytesIO()
    figure.savefig(whole, format="png")
    Image.open(whole).convert("RGB").quantize(128).save(RESULT, optimize=True)
    for question, own in zip(questions, answers, strict=True):
        print(f"{question.text} With slices: {own[True]}. Without: {own[False]}.")


if __name__ == "__main__":
    main()
