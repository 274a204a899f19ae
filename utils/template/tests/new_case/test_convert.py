"""The IR computes what PyTorch computes; unknown names are errors that list the known ones."""

import numpy as np
import pytest

from notebooks.new_case import convert, network
from notebooks.new_case.pipeline import DigitReader
from tests.new_case import small


def test_the_ir_computes_what_pytorch_does(tmp_path):
    pictures = small.pictures()
    expected = network.predict(network.random(), pictures)
    reader = DigitReader(small.ir(tmp_path), INFERENCE_PRECISION_HINT="f32")
    assert np.abs(reader.logits(pictures) - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("names", "message"),
    [(("huge", "FP32"), "no model 'huge'. Choose one of: tiny"), (("tiny", "INT2"), "no precision 'INT2'. Choose one")],
)
def test_unknown_names_are_errors(names, message, tmp_path, monkeypatch):
    (tmp_path / network.WEIGHTS).touch()
    monkeypatch.setenv("CHECKPOINT", str(tmp_path))
    with pytest.raises(ValueError, match=message):
        convert.prepare(*names)
