"""Figures show what compiled models execute and what rows hold."""

import openvino as ov

from notebooks.sdpa_enabling import figures
from notebooks.sdpa_enabling.pipeline import fuse_attention
from tests.sdpa_enabling.layers import layer


def test_columns_hold_the_executed_operations():
    model = layer("masked_fill")[1]
    before = ov.Core().compile_model(model, "CPU")
    fuse_attention(model)
    figure = figures.operations({"before": before, "after": ov.Core().compile_model(model, "CPU")})
    one, other = ([text.get_text() for text in axes.texts] for axes in figure.axes)
    assert "Softmax" in one and "Softmax" not in other
    assert any(text.startswith("ScaledDotProduct") for text in other)
    assert len(other) < len(one)


def test_curves_are_those_of_the_rows():
    rows = [
        {
            "runtime": "openvino fused",
            "precision": "FP32",
            "workload": f"{kind} {n}{end}",
            "median_ms": n / 10,
            "peak_rss_mb": n,
        }
        for kind, end in (("read", " tokens"), ("one token after", ""))
        for n in (128, 512)
    ]
    reading, one, memory = figures.curves(rows).axes
    lines = [next(line for line in axes.lines if len(line.get_xdata())) for axes in (reading, one, memory)]
    assert [list(line.get_xdata()) for line in lines] == [[128, 512]] * 3
    assert [list(line.get_ydata()) for line in lines] == [[12.8, 51.2], [12.8, 51.2], [128, 512]]
