"""Finds faces in a picture: `FaceDetector(path)(frame)` gives boxes from the forehead to the chin and ear to ear.

The model is the authors' S3FD, converted to OpenVINO, or BlazeFace as packaged by MediaPipe (a .tflite file). The
detector recognises it by its outputs. This module needs openvino, numpy and OpenCV.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

import cv2
import numpy as np
import openvino as ov

MIN_SCORE = 0.5  # least score of a face that is reported

S3FD_MEANS = (104, 117, 123)
S3FD_STRIDES = (4, 8, 16, 32, 64, 128)
S3FD_VARIANCES = (0.1, 0.2)  # training divided the offsets of centres and of sizes by these
S3FD_CANDIDATE = 0.05  # least score before suppression
S3FD_OVERLAP = 0.3

BLAZE_SIDE = 128  # pixels of BlazeFace's square input
BLAZE_GRIDS = ((16, 2), (8, 6))  # cells along a side, anchors in each cell
BLAZE_OVERLAP = 0.3
BLAZE_MIN_SCORE = 0.75  # least score of one closer look; objects that only resemble a face reach 0.67
BLAZE_CLOSER = 2.5  # side of the picture for a closer look, in widths of the face
BLAZE_LOOKS = 2  # closer looks at each face; the second one halves the tremble of its box
BLAZE_FOREHEAD = 0.15  # of the box's height: BlazeFace begins at the brows, S3FD above them


class FaceDetector:
    """Finds faces with S3FD or BlazeFace: call it with a frame.

    path: S3FD's .xml file, or BlazeFace's .tflite. properties: OpenVINO's; by default the arithmetic is f32. Threads
    may share a detector. Raises ValueError for another file.
    """

    def __init__(self, path: str | Path, device: str = "CPU", **properties):
        if not Path(path).is_file():
            raise ValueError(f"The face detector {path} is not there. Give S3FD's .xml file or BlazeFace's .tflite.")
        try:
            model = ov.Core().read_model(path)
        except RuntimeError as error:
            raise ValueError(
                f"{path} cannot be read as a face detector. Give S3FD's .xml file or BlazeFace's .tflite."
            ) from error
        outputs = {name for port in model.outputs for name in port.get_names()}
        if {"regressors", "classificators"} <= outputs:
            self._find = self._blazeface
        elif {"scores_4", "offsets_128"} <= outputs:
            self._find = self._s3fd
        else:
            raise ValueError(f"{path} is neither S3FD nor BlazeFace's short-range model. Give one of these two.")
        defaults = {"INFERENCE_PRECISION_HINT": "f32"}
        if self._find == self._blazeface and device == "CPU":
            defaults["INFERENCE_NUM_THREADS"] = 1  # the model is too small for several threads
        self._model = compiled(model, device, defaults | properties)
        self._lock = Lock()

    def __call__(self, frame: np.ndarray) -> np.ndarray:
        """Boxes [n, 5] of faces (left, top, right, bottom in pixels; score above 0.5), best score first.

        frame: [H, W, 3] uint8, BGR. A box may reach beyond the frame.
        """
        return self._find(frame)

    def _infer(self, image: np.ndarray) -> Mapping[str, np.ndarray]:
        with self._lock:
            return self._model(image)

    def _s3fd(self, frame: np.ndarray) -> np.ndarray:
        image = frame[..., ::-1] - np.array(S3FD_MEANS, np.float32)  # RGB less BGR means, as in the authors' program
        result = self._infer(np.ascontiguousarray(image.transpose(2, 0, 1)[None]))
        maps = [(result[f"scores_{stride}"][0], result[f"offsets_{stride}"][0]) for stride in S3FD_STRIDES]
        faces = decode_s3fd(maps)
        return faces[faces[:, 4] > MIN_SCORE]

    def _blazeface(self, frame: np.ndarray) -> np.ndarray:
        """Search the whole frame, then parts of it if there is no face, and confirm each face by a closer look."""
        height, width = frame.shape[:2]
        faces = np.empty((0, 5))
        for side in (max(height, width), min(height, width), max(1, min(height, width) // 2)):
            corners = [(left, top) for top in _starts(height, side) for left in _starts(width, side)]
            candidates = blend(np.concatenate([self._look(frame, left, top, side) for left, top in corners]))
            confirmed = [self._confirm(frame, face) for face in candidates]
            faces = blend(np.concatenate([faces, *confirmed]))
            if len(faces):
                break
        faces[:, 1] -= BLAZE_FOREHEAD * (faces[:, 3] - faces[:, 1])
        return faces.astype(np.float32)

    def _confirm(self, frame: np.ndarray, face: np.ndarray) -> np.ndarray:
        """The face [1, 5] with a steadier box from closer looks, or [0, 5] when these show no face."""
        best_score = 0
        for _ in range(BLAZE_LOOKS):
            side = BLAZE_CLOSER * (face[2] - face[0])
            left, top = (face[:2] + face[2:4] - side) / 2
            candidates = self._look(frame, round(left), round(top), max(1, round(side)))
            same = blend(candidates[overlap(face, candidates) > BLAZE_OVERLAP])
            if not len(same):
                break
            face = same[0]
            best_score = max(best_score, face[4])
        return face[None] if best_score > BLAZE_MIN_SCORE else np.empty((0, 5))

    def _look(self, frame: np.ndarray, left: int, top: int, side: int) -> np.ndarray:
        """Boxes and scores [n, 5] of all anchors above MIN_SCORE in a square, which is black outside the frame."""
        height, width = frame.shape[:2]
        inside = frame[max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)]
        if not inside.size:
            return np.empty((0, 5))
        border = max(-top, 0), max(top + side - height, 0), max(-left, 0), max(left + side - width, 0)
        square = cv2.copyMakeBorder(inside, *border, cv2.BORDER_CONSTANT)
        image = cv2.resize(square, (BLAZE_SIDE, BLAZE_SIDE), interpolation=cv2.INTER_AREA)[..., ::-1]
        result = self._infer(np.ascontiguousarray(image[None], np.float32) / 127.5 - 1)
        faces = decode_blazeface(result["regressors"][0], result["classificators"][0])
        faces[:, :4] = faces[:, :4] * side + [left, top, left, top]
        return faces


def compiled(model: ov.Model, device: str, properties: dict) -> ov.CompiledModel:
    """The model, compiled for a device. Raises ValueError when the device cannot run it."""
    core = ov.Core()
    try:
        return core.compile_model(model, device, properties)
    except RuntimeError as error:
        devices = ", ".join(core.available_devices)
        raise ValueError(
            f"{device} cannot run the model: {str(error).strip().splitlines()[-1]} Devices here: {devices}."
        ) from error


def decode_s3fd(maps: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Boxes and scores [n, 5] float32 of S3FD's maps after non-maximum suppression, best score first.

    maps: for strides 4, 8 ... 128, scores [2, h, w] before softmax (background, face) and offsets [4, h, w] of boxes
    from priors that are 4 strides wide and high. Source: S3FD (Zhang et al. 2017), the decoding of SSD.
    """
    candidates = []
    for stride, (scores, offsets) in zip(S3FD_STRIDES, maps, strict=True):
        score = 1 / (1 + np.exp(scores[0] - scores[1]))  # the softmax of two
        rows, columns = np.nonzero(score > S3FD_CANDIDATE)
        offset, size = offsets[:, rows, columns], 4 * stride
        centre = np.stack([columns, rows]) * stride + stride / 2 + offset[:2] * S3FD_VARIANCES[0] * size
        half = size * np.exp(offset[2:] * S3FD_VARIANCES[1]) / 2
        candidates.append(np.concatenate([centre - half, centre + half, score[None, rows, columns]]).T)
    faces = np.concatenate(candidates).astype(np.float32)
    faces = faces[np.argsort(-faces[:, 4], kind="stable")]
    selected = []
    while len(faces):
        best, faces = faces[0], faces[1:]
        selected.append(best)
        faces = faces[overlap(best, faces, pixel=1) <= S3FD_OVERLAP]
    return np.array(selected, np.float32).reshape(-1, 5)


def decode_blazeface(regressors: np.ndarray, classificators: np.ndarray) -> np.ndarray:
    """Boxes and scores [n, 5] of the anchors above MIN_SCORE, as shares of the picture's side.

    regressors: [896, 16], pixels of centre, size and six points from the anchor; classificators: [896, 1], before the
    sigmoid. Source: BlazeFace (Bazarevsky et al. 2019), its model card.
    """
    score = 1 / (1 + np.exp(-np.clip(classificators[:, 0], -80, 80)))
    valid = score > MIN_SCORE
    centre = _anchors()[valid] + regressors[valid, :2] / BLAZE_SIDE
    half = regressors[valid, 2:4] / BLAZE_SIDE / 2
    return np.concatenate([centre - half, centre + half, score[valid, None]], 1)


def blend(faces: np.ndarray) -> np.ndarray:
    """One box for each face [m, 5], best score first: the mean of all overlapping boxes, weighted by their scores."""
    faces = faces[np.argsort(-faces[:, 4], kind="stable")]
    blended = []
    while len(faces):
        same = overlap(faces[0], faces) > BLAZE_OVERLAP
        box = np.average(faces[same, :4], axis=0, weights=faces[same, 4])
        blended.append([*box, faces[0, 4]])
        faces = faces[~same]
    return np.array(blended).reshape(-1, 5)


def overlap(face: np.ndarray, faces: np.ndarray, pixel: int = 0) -> np.ndarray:
    """Intersection over union of a box with each of `faces` [n]; `pixel` 1: the last pixel is inside a box."""
    corner, end = np.maximum(face[:2], faces[:, :2]), np.minimum(face[2:4], faces[:, 2:4])
    both = np.prod(np.maximum(end - corner + pixel, 0), 1)
    area, areas = np.prod(face[2:4] - face[:2] + pixel), np.prod(faces[:, 2:4] - faces[:, :2] + pixel, 1)
    return both / (area + areas - both)


def _anchors() -> np.ndarray:
    """Centres [896, 2] of BlazeFace's anchors, as shares of the picture's side, row by row."""
    centres = []
    for cells, count in BLAZE_GRIDS:
        y, x = (np.mgrid[:cells, :cells] + 0.5) / cells
        centres.append(np.stack([x, y], -1).reshape(-1, 2).repeat(count, 0))
    return np.concatenate(centres)


def _starts(length: int, side: int) -> list[int]:
    """Starts of squares that cover `length` pixels with at least half overlap; a square larger than that is centred."""
    if side >= length:
        return [(length - side) // 2]
    count = math.ceil(2 * (length - side) / side) + 1
    return [round(start) for start in np.linspace(0, length - side, count)]
