"""Inputs for a model of which nothing is known but its ports: a few sizes are tried until it runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openvino as ov

from utils.arm import worker
from utils.models.inputs import drawn

LENGTHS = (12, 64, 480, 4000)  # of dynamic axes: steps, or samples of sound
ROWS = 2  # of the batch of a model with a cache: each token of a language model takes seconds under emulation
FACTORS = (14, 2, 3, 4, 5, 10, 80, 100, 120, 128, 160, 200, 240, 256, 300, 320, 400, 441, 480, 512, 600, 640)
LARGEST = 50_000_000  # numbers in an input


def reference(model: ov.Model) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs that the model takes, and its outputs on this processor in f32, none of which is empty. Raises ValueError
    where none of the sizes fit."""
    tried = worker.compiled(model, "f32")
    for inputs in candidates(model):
        try:
            outputs = [x.copy() for x in tried(inputs).values()]
        except RuntimeError:  # lengths that do not fit together
            continue
        if all(x.size and (x.dtype.kind != "f" or np.isfinite(x).all()) for x in outputs):
            # Compiled anew: after a call that failed, later results may be wrong.
            return inputs, [x.copy() for x in worker.compiled(model, "f32")(inputs).values()]
    raise ValueError("no sizes of its inputs were found that fit together")


def candidates(model: ov.Model) -> Iterator[list[np.ndarray]]:
    """All dynamic axes of one length, and then, for sound next to its frames or pixels next to their patches, those of
    one input longer by a factor; then the same with ROWS along the first axes.

    With an input `beam_idx`, which orders the rows of a cache, the first axes are always ROWS.
    """
    dynamic = [i for i, port in enumerate(model.inputs) if port.get_partial_shape().is_dynamic]
    for has_rows in (False, True):
        if not has_rows and any("beam_idx" in port.get_names() for port in model.inputs):
            continue
        for length in LENGTHS:
            yield from _drawn(model, [length] * len(model.inputs), has_rows)
        if len(dynamic) > 1:
            for i in dynamic:
                for factor in FACTORS:
                    lengths = [LENGTHS[0] * (factor if j == i else 1) for j in range(len(model.inputs))]
                    yield from _drawn(model, lengths, has_rows)


def _drawn(model: ov.Model, lengths: list[int], has_rows: bool) -> Iterator[list[np.ndarray]]:
    """One list of inputs whose dynamic axes have these lengths, and the first ones ROWS if asked, unless it is too
    large."""
    rng, inputs = np.random.default_rng(0), []
    for port, length in zip(model.inputs, lengths, strict=True):
        sizes = list(port.get_partial_shape())
        shape = [length if size.is_dynamic else size.get_length() for size in sizes]
        if has_rows and sizes and sizes[0].is_dynamic:
            shape[0] = ROWS
        if np.prod(shape) > LARGEST:
            return
        inputs.append(drawn(port, shape, rng))
    yield inputs
