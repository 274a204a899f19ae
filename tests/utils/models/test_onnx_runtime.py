"""Sessions of ONNX Runtime do not take the cores of each other."""

from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from utils import preflight
from utils.models import onnx_runtime


def threads_of_more_sessions(path: Path, shared: bool) -> tuple[int, np.ndarray]:
    """How many threads three more sessions bring, and the output of the last."""
    if shared:
        onnx_runtime.share_threads()
    sessions = [onnx_runtime.session(path)]
    before = psutil.Process().num_threads()
    sessions += [onnx_runtime.session(path) for _ in range(3)]
    (output,) = sessions[-1].run(None, {"x": np.ones((1, 2), np.float32)})
    return psutil.Process().num_threads() - before, output


@pytest.mark.skipif(psutil.cpu_count(logical=False) == 1, reason="one core: ONNX Runtime has no pool of threads")
def test_sessions_share_threads_where_asked(tmp_path):
    network, path = torch.nn.Linear(2, 3), tmp_path / "x.onnx"
    torch.onnx.export(network, (torch.zeros(1, 2),), str(path), dynamo=False, input_names=["x"])
    own, first = preflight.in_child(threads_of_more_sessions, path, False)
    shared, second = preflight.in_child(threads_of_more_sessions, path, True)
    assert own >= 3 and shared == 0
    with torch.no_grad():
        expected = network(torch.ones(1, 2)).numpy()
    assert np.allclose(first, expected, atol=1e-6) and np.allclose(second, expected, atol=1e-6)
