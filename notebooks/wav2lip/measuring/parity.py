"""Compares every converted network with PyTorch on the same weights and inputs, in FP32."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import openvino as ov
import torch

from notebooks.wav2lip import convert
from notebooks.wav2lip.network import S3FD
from utils import compare

TOLERANCE = 1e-4
BATCH = 8
F32 = {"INFERENCE_PRECISION_HINT": "f32"}  # the CPU's default may be bf16


def parity(generator: Path, model: str = "tiny", device: str = "CPU") -> list[dict]:
    """A row for the generator, whose IR is given, the lip-sync expert, and the face detector S3FD.

    S3FD has random weights with the tiny model, whose own detector, BlazeFace, exists as a converted file only. The
    tests compare all three with the authors' programs.
    """
    rng = np.random.default_rng(0)
    audio = rng.uniform(-4, 4, (BATCH, *convert.AUDIO)).astype(np.float32)  # [8, 1, 80, 16]
    faces = rng.random((BATCH, *convert.FACE), np.float32)  # [8, 6, 96, 96]
    lips = rng.random((BATCH, *convert.LOWER_HALVES), np.float32)  # [8, 15, 48, 96]
    image = rng.uniform(-120, 130, (1, 3, 160, 128)).astype(np.float32)
    torch.manual_seed(0)
    detector = convert.load("face_detection", model) if model == "released" else S3FD().eval()
    with TemporaryDirectory() as folder:
        s3fd = convert.convert_detector(detector, Path(folder) / "s3fd.xml")
        compared = {
            "generator": (convert.load("wav2lip", model), generator, [audio, faces]),
            "lip-sync expert": (convert.load("syncnet", model), convert.prepare("syncnet", model), [audio, lips]),
            "face detection (S3FD)": (detector, s3fd, [image]),
        }
        rows = []
        for stage, (network, ir, inputs) in compared.items():
            with torch.inference_mode():
                reference = network(*(torch.from_numpy(x) for x in inputs))
            reference = [reference] if isinstance(reference, torch.Tensor) else reference
            ours = ov.Core().compile_model(ir, device, F32)(inputs).values()
            rows.append(compare.parity(stage, _flat(ours), _flat(reference), TOLERANCE))
    return rows


def _flat(arrays: Iterable) -> np.ndarray:
    return np.concatenate([np.ravel(array) for array in arrays])
