"""Figures show the numbers that they are given."""

from matplotlib.figure import Figure

from utils import charts, compare


def test_bars_are_as_high_as_the_shares():
    rows = [
        compare.quality("drawings, thing", "FP16", 0.9, 0.9, 0.8, "higher"),
        compare.quality("drawings, thing", "INT4", 0.8, 0.9, 0.8, "higher"),
        compare.control("drawings, thing", "no sentence", 0.1, 0.8, "higher"),
        compare.quality("drawings, guidance off", "FP16", 0.4, None, None, "higher"),
        compare.quality("accuracy, colour", "FP16", 1.0, 1.0, 0.9, "higher"),
    ]
    (axes,) = charts.bars_by_kind(rows, "drawings, ", "right drawings").axes
    assert [bar.get_height() for bar in axes.patches] == [0.9, 0.8]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["thing"]
    assert axes.collections[0].get_offsets()[0][1] == 0.1


def test_arrows_lead_from_box_to_box():
    axes = Figure().subplots()
    boxes = [charts.box(axes, x, 0, name) for x, name in enumerate("abc")]
    charts.arrows(axes, boxes)
    ends = [(text.xyann, text.xy) for text in axes.texts if text not in boxes]
    assert ends == [((0, 0), (1, 0)), ((1, 0), (2, 0))]
