"""Inputs for a model of which nothing is known but its ports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov


def drawn(port: ov.Output, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Small numbers; for masks ones, but zeros for those of padding, so that everything is seen; for rows and positions
    those in order, for other integers 1 to 3.

    shape: of the result, without a dynamic axis.
    """
    name = port.any_name if port.names else ""
    kind = port.get_element_type().to_dtype()
    if "mask" in name:
        return np.full(shape, "padding" not in name, kind)
    if name == "beam_idx" or "position" in name and np.issubdtype(kind, np.integer):
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(kind)
    if np.issubdtype(kind, np.integer):
        return rng.integers(1, 4, shape).astype(kind)
    return (0.3 * rng.standard_normal(shape)).astype(kind)
