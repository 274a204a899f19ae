"""Figures show the numbers that they were given."""

import numpy as np

from notebooks.rag_serving import figures
from notebooks.rag_serving.measuring import retrieval


def texts(figure) -> str:
    return " ".join(text.get_text() for axes in figure.axes for text in axes.texts)


def test_the_flow_names_both_paths():
    assert "once for each document" in texts(figures.flow()) and "for each question" in texts(figures.flow())


def test_the_map_joins_the_question_with_its_nearest_passages():
    vectors = np.random.default_rng(0).standard_normal((20, 8))
    axes = figures.passage_map(vectors, ["a"] * 10 + ["b"] * 10, vectors[3], [3, 4]).axes[0]
    assert len(axes.lines) == 2 and len(axes.collections) == 3
    assert np.allclose(axes.lines[0].get_xdata()[0], axes.lines[0].get_xdata()[1])  # the third passage is the question


def test_each_layer_of_the_walk_begins_where_the_one_above_ended():
    axes = figures.walk().axes
    paths = [own.lines[-1].get_xydata() for own in axes]
    assert all(np.allclose(one[-1], after[0]) for one, after in zip(paths, paths[1:], strict=False))


def test_the_largest_cosine_of_each_token_is_framed():
    cosines = np.array([[0.1, 0.9, 0.2], [0.8, 0.3, 0.4]])
    axes = figures.token_map(cosines, ["wine", "country"], ["grapes", "wines", "Italy"]).axes[0]
    assert [(own.get_x() + 0.5, own.get_y() + 0.5) for own in axes.patches] == [(1, 0), (0, 1)]
    assert axes.get_title(loc="left") == "MaxSim 0.850"


def test_each_kind_of_search_has_a_colour_of_its_own():
    lines = figures.recall_figure({name: [0.1, 0.5] for name in retrieval.SEARCHES.values()}).axes[0].lines
    assert len({line.get_color() for line in lines}) == len(lines) == len(retrieval.SEARCHES)


def test_lines_and_bars_have_the_values():
    lines = figures.recall_figure({"words only": [0.1, 0.5], "control: random": [0, 0]}).axes[0].lines
    assert list(lines[0].get_ydata()) == [0.1, 0.5] and lines[1].get_linestyle() == "--"
    rows = [
        {"metric": "right answers of 10", "precision": "INT8", "value": 0.6},
        {"metric": "right answers of 10", "precision": None, "value": 0.1, "controls": "x", "control": "no passages"},
    ]
    assert "60 %" in texts(figures.results_figure(rows)) and "10 %" in texts(figures.results_figure(rows))
