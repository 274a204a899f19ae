"""Figures of graphs, and of what the slice saves."""

import openvino as ov
import pytest

from notebooks.graph_customization import figures
from notebooks.graph_customization.pipeline import InsertSlice, customize
from tests.utils.models.small import language_model


def texts(axes) -> dict[str, tuple[str, tuple]]:
    """The kind of each operation drawn, with its colour and place."""
    return {
        text.get_text().split("\n")[0]: (text.get_bbox_patch().get_facecolor(), text.get_position())
        for text in axes.texts
        if text.get_text()
    }


def colour(name: str) -> tuple:
    from matplotlib.colors import to_rgba

    return to_rgba(name)


@pytest.fixture
def graphs() -> tuple[ov.Model, ov.Model]:
    before = language_model()
    after = before.clone()
    customize(after, [InsertSlice()])
    return before, after


def test_only_the_new_operation_is_coloured_and_others_keep_their_places(graphs):
    before, after = (texts(axes) for axes in figures.before_and_after(*graphs).axes)
    assert "Slice" not in before
    assert [kind for kind, (fill, _) in after.items() if fill == colour(figures.NEW)] == ["Slice"]
    assert before.keys() == after.keys() - {"Slice"}, "the new operation does not count as a step"
    assert all(after[kind][1] == place for kind, (_, place) in before.items())


def test_a_graph_without_an_output_layer_is_an_error():
    parameter = ov.opset13.parameter([1], ov.Type.f32)
    with pytest.raises(ValueError, match="has no output layer to draw"):
        figures.find_head(ov.Model([ov.opset13.relu(parameter)], [parameter]))


def test_savings_are_those_of_the_rows():
    rows = []
    for name, times in (("base", (20.0, 2000.0)), ("sliced", (10.0, 500.0))):
        for tokens, ms in zip((16, 2048), times, strict=True):
            workload = f"prefill {tokens} tokens, vocabulary 49,152"
            rows.append({"runtime": f"openvino {name}", "workload": workload, "median_ms": ms, "peak_rss_mb": 2 * ms})
    time, memory = figures.savings(rows, ["vocabulary 49,152"]).axes
    assert [list(line.get_ydata()) for line in time.lines] == [[0.02, 2.0], [0.01, 0.5]]
    assert [list(line.get_ydata()) for line in memory.lines] == [[0.04, 4.0], [0.02, 1.0]]
    assert [text.get_text().split() for text in time.texts] == [
        ["as", "exported", "2", "s"],
        ["customized", "0.5", "s"],
    ]
