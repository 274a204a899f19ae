"""The command line: what it names and writes, and its errors."""

import numpy as np
import openvino as ov
import pytest

from notebooks.arm import convert, data, pipeline
from notebooks.arm.__main__ import main


def test_it_names_faults_and_lifts_what_can_be_lifted(tmp_path, capsys):
    ov.save_model(convert.gate(), tmp_path / "gate.xml", compress_to_fp16=False)
    assert main([str(tmp_path / "gate.xml"), "-o", str(tmp_path / "right.xml")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("wrong on ARM: ") == 2 and "right.xml: 1 left, whose workarounds are in README.md" in printed
    before, after = (pipeline.run(tmp_path / name, [data.noisy()], "f32") for name in ("gate.xml", "right.xml"))
    assert np.abs(before.outputs[0] - after.outputs[0]).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "output", "message"),
    [
        ("none.xml", "a.xml", "none.xml is no model"),
        ("gate.xml", "gate.xml", "cannot be written. Give another file"),
        ("gate.xml", "a.onnx", "cannot be written"),
    ],
)
def test_bad_input_is_a_message(tmp_path, capsys, name, output, message):
    ov.save_model(convert.gate(), tmp_path / "gate.xml", compress_to_fp16=False)
    assert main([str(tmp_path / name), "-o", str(tmp_path / output)]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "a.xml").exists()
