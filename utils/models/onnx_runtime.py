"""Sessions of ONNX Runtime, for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime


def session(path: Path) -> onnxruntime.InferenceSession:
    """A session on a file, for programs that call several sessions in turn: all cores, all optimizations.

    Its idle threads sleep. By default they spin for a while, on the cores that the next session needs.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
