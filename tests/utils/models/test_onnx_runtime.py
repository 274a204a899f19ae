"""Sessions of ONNX Runtime do not take the cores of each other."""

import numpy as np
import torch

from utils.models import onnx_runtime


def test_idle_threads_of_an_onnx_session_sleep(tmp_path):
    torch.onnx.export(torch.nn.Linear(2, 3), (torch.zeros(1, 2),), str(tmp_path / "x.onnx"), dynamo=False)
    session = onnx_runtime.session(tmp_path / "x.onnx")
    (x,) = session.get_inputs()
    assert session.run(None, {x.name: np.ones((1, 2), np.float32)})[0].shape == (1, 3)
    assert session.get_session_options().get_session_config_entry("session.intra_op.allow_spinning") == "0"
