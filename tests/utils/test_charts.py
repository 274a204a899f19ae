"""Figures show the numbers that they are given."""

import re
import warnings
from io import BytesIO

import pytest
from matplotlib.figure import Figure

from utils import bench, charts, compare


def test_bars_are_as_high_as_the_shares():
    rows = [
        compare.quality("drawings, thing", "FP16", 0.9, 0.9, 0.8, "higher"),
        compare.quality("drawings, thing", "INT4", 0.8, 0.9, 0.8, "higher"),
        compare.control("drawings, thing", "no sentence", 0.1, 0.8, "higher"),
        compare.control("drawings, thing", "another sentence", 0.2, 0.8, "higher"),
        compare.quality("drawings, guidance off", "FP16", 0.4, None, None, "higher"),
        compare.quality("accuracy, colour", "FP16", 1.0, 1.0, 0.9, "higher"),
    ]
    (axes,) = charts.bars_by_kind(rows, "drawings, ", "right drawings").axes
    assert [bar.get_height() for bar in axes.patches] == [0.9, 0.8, 0.2]  # of the controls the best
    assert axes.patches[2].get_hatch() and [text.get_text() for text in axes.texts] == ["0.2"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["thing"]


def test_speed_bars_are_sorted_and_have_the_ratio_to_the_fastest_pytorch():
    eager, scripted, ours, peer = (bench.Timing.of([ms]) for ms in (60.0, 30.0, 10.0, 20.0))
    rows = [
        bench.row("torch eager", "FP32", "prefill", eager, torch=eager),
        bench.row("torchscript", "FP32", "prefill", scripted, torch=eager),
        bench.row("openvino", "INT8", "prefill", ours, torch=eager),
        bench.row("onnxruntime", "FP32", "prefill", peer, torch=eager),
        bench.row("openvino", "INT8", "decode", ours),
    ]
    (axes,) = charts.speed_bars(rows, {"prefill": "First token"}).axes
    assert [bar.get_width() for bar in axes.patches] == [10, 20, 30, 60]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("openvino INT8", "onnxruntime FP32", "torchscript FP32", "torch eager FP32")
    ]
    assert [text.get_text() for text in axes.texts] == ["10 ms   3x", "20 ms   1.5x", "30 ms   1x", "60 ms   0.5x"]
    assert axes.get_title(loc="left") == "First token"
    with pytest.raises(ValueError, match="No row has the workload 'load'. There are: decode, prefill"):
        charts.speed_bars(rows, {"load": "Loading"})
    (axes,) = charts.speed_bars(rows, {"decode": "Next tokens"}).axes
    assert [text.get_text() for text in axes.texts] == ["10 ms"]  # PyTorch was not timed


def test_arrows_lead_from_box_to_box():
    axes = Figure().subplots()
    boxes = [charts.box(axes, x, 0, name) for x, name in enumerate("abc")]
    charts.arrows(axes, boxes)
    ends = [(text.xyann, text.xy) for text in axes.texts if text not in boxes]
    assert ends == [((0, 0), (1, 0)), ((1, 0), (2, 0))]


def test_chinese_characters_are_drawn():
    """matplotlib warns about every character that no font has."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = Figure()
        figure.text(0.5, 0.5, "请问 qǐng wèn", fontfamily=charts.chinese())
        figure.savefig(BytesIO())
    with pytest.warns(UserWarning, match="missing from font"):
        figure.text(0.5, 0.5, "龘", fontfamily=charts.chinese())
        figure.savefig(BytesIO())


def test_the_chinese_font_has_its_characters():
    characters = (charts.CHINESE.parent / "characters.txt").read_text(encoding="utf-8")
    assert len(re.findall("[\u4e00-\u9fff]", characters)) > 600
    assert charts.has_glyphs(characters.replace("\n", "")) and not charts.has_glyphs("龘")
