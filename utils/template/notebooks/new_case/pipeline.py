"""Reads handwritten digits with OpenVINO. Copy this file into your project: it needs `openvino` and `numpy` only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov

MODEL_XML = "openvino_model.xml"
SIDE = 8  # pixels


class DigitReader:
    """A converted model, compiled for one device. Threads may share it."""

    def __init__(self, folder: str | Path, device: str = "CPU", **properties) -> None:
        """folder: what `convert.prepare` returns. properties: OpenVINO's, such as INFERENCE_PRECISION_HINT="f32".

        Raises ValueError if the folder holds no model.
        """
        path = Path(folder) / MODEL_XML
        if not path.is_file():
            raise ValueError(f"{folder} holds no {MODEL_XML}. Give the folder that the conversion wrote.")
        self._compiled = ov.Core().compile_model(path, device, properties)

    def __call__(self, pictures: np.ndarray) -> np.ndarray:
        """Probabilities [n, 10] of the digits 0 to 9 for pictures [n, 8, 8] of values from 0 (paper) to 1 (ink).

        Raises ValueError for pictures of another shape or with other values.
        """
        logits = self.logits(check(pictures))  # [n, 10]
        exponentials = np.exp(logits - logits.max(1, keepdims=True))
        return exponentials / exponentials.sum(1, keepdims=True)

    def logits(self, pictures: np.ndarray) -> np.ndarray:
        """What the network returns, float32 [n, 10], for float32 pictures [n, 8, 8]."""
        return self._compiled.infer_new_request({"pictures": pictures})["logits"]


def check(pictures: np.ndarray) -> np.ndarray:
    """The pictures as float32 [n, 8, 8]. Raises ValueError for another shape or for values outside 0 to 1."""
    pictures = np.asarray(pictures, np.float32)
    if pictures.ndim != 3 or pictures.shape[1:] != (SIDE, SIDE) or not len(pictures):
        raise ValueError(f"pictures has the shape {list(pictures.shape)}. Give [n, {SIDE}, {SIDE}], n at least 1.")
    if not ((pictures >= 0) & (pictures <= 1)).all():
        raise ValueError("pictures holds values outside 0 to 1. Scale them: 0 is paper, 1 is ink.")
    return pictures
