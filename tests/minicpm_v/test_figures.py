"""The figures: pieces in the pixels that the model reads, answers of the model, numbers of the table."""

import numpy as np
import pytest
from PIL import Image

from notebooks.minicpm_v import convert, figures
from notebooks.minicpm_v.data import small_words
from notebooks.minicpm_v.pipeline import Answer, VisionChat, slicing
from utils import report

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (336, 336, 3), dtype=np.uint8))


def test_the_picture_of_the_readme_shows_words_that_only_slices_let_the_model_read():
    picture, questions = small_words(figures.POSTER)
    answers = figures.checked_answers(VisionChat(convert.prepare("tiny", "INT8")), picture, questions)
    assert len(answers) == 3
    assert [own[True] for own in answers] == [question.answer for question in questions]
    assert all(own[False] != own[True] for own in answers)


@pytest.mark.parametrize("word", ["CAT", ""])
def test_a_model_that_needs_no_slices_or_reads_nothing_makes_no_picture(word):
    class Same:
        def ask(self, picture, text, slicing):
            return Answer(word or questions[0].answer)

    picture, questions = small_words(figures.POSTER)
    with pytest.raises(ValueError, match="take another picture"):
        figures.checked_answers(Same(), picture, questions)


def test_both_panels_have_the_pixels_that_the_model_reads():
    plan = slicing.plan(NOISE.size, resolution=112)
    overview, *slices = slicing.cut(NOISE, plan)
    left, right = figures.pieces_figure(NOISE, plan, {True: "A", False: "B"}, "A").axes
    assert np.array_equal(left.images[0].get_array(), np.asarray(overview))
    sheet = np.asarray(right.images[0].get_array())
    assert sheet.shape == (346, 346, 3)
    for number, piece in enumerate(slices):
        row, column = divmod(number, 3)
        assert np.array_equal(sheet[117 * row :][:112, 117 * column :][:, :112], np.asarray(piece))
    assert [axes.texts[0].get_text() for axes in (left, right)] == ["answer: B (wrong)", "answer: A (right)"]


def test_a_picture_that_stays_whole_has_one_panel():
    plan = slicing.plan((112, 112), resolution=112)
    left, right = figures.pieces_figure(NOISE.resize((112, 112)), plan).axes
    assert len(left.images) == 1 and not right.images


def test_cuts_are_where_slices_meet():
    drawn = np.asarray(figures.draw_slices(Image.new("RGB", (90, 60), "white"), (3, 2)))
    across = [x for x in range(90) if tuple(drawn[10, x]) == figures.CUT_COLOUR]
    down = [y for y in range(60) if tuple(drawn[y, 10]) == figures.CUT_COLOUR]
    assert across == [30, 60] and down == [30]


def test_the_chart_has_the_numbers_of_the_table():
    rows = report.examination("minicpm_v")["quality"]
    (axes,) = figures.accuracy_figure(rows).axes
    own = [row for row in rows if row["metric"] == figures.SMALL_WORDS and row["precision"]]
    without = next(row for row in rows if row.get("control") == figures.NO_SLICES)
    of = own[0]["of"]
    read, missed = (round(value * of) for value in (min(row["value"] for row in own), without["value"]))
    assert axes.get_title() == f"Small words read right: {read} of {of} with slices, {missed} of {of} without"
    heights = sorted(bar.get_height() for container in axes.containers[:-2] for bar in container)
    accuracies = [row["value"] for row in rows if row["metric"].startswith("accuracy, ") and row["precision"]]
    assert heights == sorted(accuracies) and all(bar.get_hatch() for c in axes.containers[-2:] for bar in c)
