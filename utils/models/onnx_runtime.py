"""Sessions of ONNX Runtime, for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime

_threads_are_shared = False


def share_threads() -> None:
    """Let the sessions of this process share one pool of threads, ahead of the first: for a process that times several.

    By default each session has threads of its own, and those of the last one spin for a while on the cores that the
    next one needs. From now on only `session` can make sessions in this process.
    """
    global _threads_are_shared
    import onnxruntime

    onnxruntime.set_global_thread_pool_sizes()
    _threads_are_shared = True


def session(path: Path) -> onnxruntime.InferenceSession:
    """A session on a file: all cores, all optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = not _threads_are_shared
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
