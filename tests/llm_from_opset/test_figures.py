"""Figures show what a compiled layer executes, and what rows hold."""

import pytest

from notebooks.llm_from_opset import figures
from notebooks.llm_from_opset.convert import checkpoint_folder


@pytest.mark.parametrize(("precision", "kind"), [("INT8", "u8"), ("INT4", "u4")])
def test_every_operation_of_the_graph_is_a_part_of_an_executed_one(precision, kind):
    rows = figures.executed(figures.first_layer(checkpoint_folder(), precision))
    sources = {row.kind: row.sources for row in rows}
    assert sorted(sources["RMS"]) == ["Add", "Divide", "Multiply", "Multiply", "Power", "ReduceMean", "Sqrt"]
    assert "Concat" in sources["RoPE"] and "Slice" in sources["RoPE"]
    assert {"Concat", "Broadcast", "ScaledDotProductAttention"} <= set(sources["ScaledDotProductAttention"])
    products = [row for row in rows if row.kind == "FullyConnected"]
    assert len(products) == 7 and {row.weights for row in products} == {kind}
    texts = [text.get_text() for text in figures.fusion(rows).axes[0].texts]
    assert "FullyConnected q_proj" in texts and texts.count("RMS") == 2 and f"{kind} weights" in texts


def test_conversions_are_those_of_the_rows():
    size = "conversion, 2 parameters"
    rows = [
        {"workload": size, "runtime": f"openvino {name}", "precision": "INT8", "median_ms": 1000 * seconds}
        for name, seconds in (("built", 3), ("exported", 9))
    ]
    notes = {f"{size}: own memory of {name} INT8, MB": mb for name, mb in (("built", 200), ("exported", 900))}
    time, memory = figures.conversions(rows, notes).axes
    assert [bar.get_width() for bar in time.patches] == [3, 9]
    assert [bar.get_width() for bar in memory.patches] == [0.2, 0.9]
