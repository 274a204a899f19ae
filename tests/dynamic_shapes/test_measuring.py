"""Measuring: the stream is what it says, figures show the rows, and unknown names are errors."""

import numpy as np
import pytest

from notebooks.dynamic_shapes import convert, figures, measuring


def test_the_stream_is_seeded_and_within_its_limits():
    lengths = measuring.stream_lengths(500, seed=1)
    assert np.array_equal(lengths, measuring.stream_lengths(500, seed=1))
    assert not np.array_equal(lengths, measuring.stream_lengths(500, seed=0))
    assert 1 <= lengths.min() and lengths.max() <= measuring.LONGEST


def test_a_stream_gives_rows_for_its_time_and_its_slowest_requests(tmp_path):
    measuring.write_networks(tmp_path)
    rows, notes = measuring.stream_rows("vocoder", (measuring.OURS, "torch eager"), tmp_path, 5)
    assert [row["workload"] for row in rows] == ["vocoder: 5 requests"] * 2 + ["vocoder: p99 of 5 requests"] * 2
    assert rows[0]["median_ms"] > rows[2]["median_ms"] > 0 and rows[1]["ratio_to_torch"] == 1
    assert notes["vocoder, openvino buckets"].startswith("5 requests")
    assert len(figures.stream_figure(rows).axes) == 3


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_network_has_a_workload_for_each_shape(tmp_path, kind):
    measuring.write_networks(tmp_path)
    calls = measuring.start("encoder", kind, "ENABLE", "FP32", tmp_path)
    assert [name.removeprefix("encoder, ") for name in calls] == list(measuring.SHAPES)
    next(iter(calls.values()))()


def test_first_calls_has_a_panel_for_each_network():
    figure = figures.first_calls({"a": ([2, 3], [1, 1]), "b": ([4, 5], [1, 1])}, [10, 11])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a", "b"]


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match="no model 'huge'. Models: tiny, released"):
        convert.prepare("huge")
    with pytest.raises(ValueError, match="no network 'decoder'. Choose one of: encoder, vocoder"):
        convert.network_of("decoder")
