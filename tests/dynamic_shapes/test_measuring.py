"""Measuring: the stream is what it says, figures show the rows, and unknown names are errors."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as ops

from notebooks.dynamic_shapes import __main__ as command
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


def test_inputs_have_the_length_the_batch_and_the_multiples():
    text = ops.parameter([-1, -1], np.int64, name="input_ids")
    noise = ops.parameter([1, 8, -1], np.float32, name="noise")
    frames = ops.parameter([-1, 3], np.float32, name="frames")
    model = ov.Model([ops.result(one) for one in (text, noise, frames)], [text, noise, frames])
    arrays = measuring.sized(model, 5, batch=4, multiples={"noise": 2})
    assert {name: array.shape for name, array in arrays.items()} == {
        "input_ids": (4, 5),
        "noise": (1, 8, 10),
        "frames": (5, 3),  # nothing but the batch is dynamic, so that is the length
    }
    with pytest.raises(ValueError, match="no input 'sound'. There are: input_ids, noise, frames"):
        measuring.sized(model, 5, multiples={"sound": 2})


def test_the_command_measures_a_model(tmp_path, capsys):
    file = tmp_path / "gate.xml"
    ov.save_model(convert.to_ir("encoder"), file)
    assert command.main([str(file), "--lengths", "4", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["capacity", *command.CAPACITIES]
    assert all(float(number) > 0 for line in lines[1:] for number in line.split()[1:3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.xml"], "There is no model absent.xml. Give an .xml or .onnx file."),
        (["absent.xml", "--lengths", "6", "4"], "There are no lengths from 6 to 3"),
        (["absent.xml", "--multiple", "noise"], "'noise' is no multiple. Write it as noise=2."),
    ],
)
def test_the_command_names_bad_input(arguments, message, capsys):
    assert command.main(arguments) == 1
    assert message in capsys.readouterr().err


def test_a_notebook_that_never_ran_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("MODELS_DIR", str(tmp_path))
    with pytest.raises(ValueError, match="There is no sambert_hifigan-tiny.*Run that notebook first"):
        measuring.submodel_notes()


def test_first_calls_has_a_panel_for_each_network():
    figure = figures.first_calls({"a": ([2, 3], [1, 1]), "b": ([4, 5], [1, 1])}, [10, 11])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a", "b"]


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match="no model 'huge'. Models: tiny, released"):
        convert.prepare("huge")
    with pytest.raises(ValueError, match="no network 'decoder'. Choose one of: encoder, vocoder"):
        convert.network_of("decoder")
