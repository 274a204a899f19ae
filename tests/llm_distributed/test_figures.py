"""The figures show what they are given."""

from notebooks.llm_distributed import figures
from notebooks.llm_distributed.pipeline.shares import plan
from notebooks.llm_distributed.pipeline.stages import Run
from tests.llm_distributed.test_shares import SMOLLM2

ROW = {"weights_mb": 1, "cache_mb": 1, "private_mb": 421.0}


def test_a_plan_has_the_numbers_of_each_rank():
    figure = figures.cut_figure([plan(SMOLLM2, 2), plan(SMOLLM2, 4)])
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["6", "3", "2", "1", "704", "832", "24,576", "24,576"]
    assert len(figure.axes) == 2


def test_the_graph_has_two_sums():
    texts = [text.get_text() for text in figures.graph_figure().axes[0].texts]
    assert texts.count("AllReduce") == 4 and "own heads,\no_proj (rank 1)" in texts


def test_memory_has_a_bar_for_each_process():
    figure = figures.memory_figure({"whole": [ROW], "2 ranks": [ROW, ROW]})
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["whole", "2 ranks, rank 0", "2 ranks, rank 1"]


def test_memory_comes_back_from_notes():
    notes = {"private MB, whole, rank 0": 600, "private MB, 2 ranks, rank 0": 300, "private MB, 2 ranks, rank 1": 310}
    assert figures.stored_memory(notes) == {
        "whole": [{"private_mb": 600}],
        "2 ranks": [{"private_mb": 300}, {"private_mb": 310}],
    }


def test_calls_stand_in_the_order_in_which_they_began():
    run = Run([[1, 2], [3, 4]], 5.0, [[(0, 0.0, 0.1), (1, 0.1, 0.2)] * 2, [(0, 0.11, 0.2), (1, 0.2, 0.3)] * 2])
    bars = figures.order_figure(run, calls=2).axes[0].patches
    assert len(bars) == 4 and bars[0].get_facecolor() == bars[1].get_facecolor() != bars[2].get_facecolor()


def test_own_work_and_the_group_add_up_to_a_token():
    notes = {"ms of a token, one": 5.0, "of these in the group, one": 1.0, "ms of a token, 2 ranks, predicted": 9.0}
    own, group = figures.split_figure(notes).axes[0].patches
    assert own.get_width() == 4 and group.get_width() == 1 and group.get_x() == 4
