"""Faces in a picture: `FaceDetector(path)(frame)` gives their boxes, from the forehead to the chin and ear to ear.

It reads the authors' S3FD, converted to OpenVINO, or BlazeFace as it comes packaged (a .tflite file), and tells them
apart by their outputs. Needs openvino, numpy and OpenCV.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock

import cv2
import numpy as np
import openvino as ov

SURE = 0.5  # least score of a face that is reported

S3FD_MEANS = (104, 117, 123)
S3FD_STRIDES = (4, 8, 16, 32, 64, 128)
S3FD_VARIANCES = (0.1, 0.2)  # training divided the offsets of centres and of sizes by these
S3FD_CANDIDATE = 0.05  # least score before suppression
S3FD_OVERLAP = 0.3

BLAZE_SIDE = 128  # pixels of the square picture that BlazeFace looks at
BLAZE_GRIDS = ((16, 2), (8, 6))  # cells along a side, anchors in each cell
BLAZE_OVERLAP = 0.3
BLAZE_SURE = 0.75  # score that one closer look must reach: what only resembles a face has 0.67
BLAZE_CLOSER = 2.5  # side of the picture for a closer look, in widths of the face
BLAZE_LOOKS = 2  # closer looks at each face: the second halves how much its box trembles
BLAZE_FOREHEAD = 0.15  # of the box's height: BlazeFace begins at the brows, S3FD above them


class FaceDetector:
    """Finds faces with S3FD or BlazeFace: call it with a frame.

    path: S3FD's .xml file, or BlazeFace's .tflite. properties: OpenVINO's; unless they say otherwise, the arithmetic is
    f32. May be shared by threads. Raises ValueError for another file.
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
            defaults["INFERENCE_NUM_THREADS"] = 1  # so small that threads would only wait for each other
        self._model = compiled(model, device, defaults | properties)
        self._lock = Lock()

    def __call__(self, frame: np.ndarray) -> np.ndarray:
        """Boxes [n, 5] of faces (left, top, right, bottom in pixels; score above 0.5), the surest first.

        frame: [H, W, 3] uint8, BGR. A box may reach beyond the frame.
        """
        return self._find(frame)

    def _infer(self, image: np.ndarray) -> Mapping[str, np.ndarray]:
        with self._lock:
            return self._model(image)

    def _s3fd(self, frame: np.ndarray) -> np.ndarray:
        image = frame[..., ::-1] - np.array(S3FD_MEANS, np.float32)  # RGB less BGR means, as the authors feed it
        result = self._infer(np.ascontiguousarray(image.transpose(2, 0, 1)[None]))
        maps = [(result[f"scores_{stride}"][0], result[f"offsets_{stride}"][0]) for stride in S3FD_STRIDES]
        faces = decode_s3fd(maps)
        return faces[faces[:, 4] > SURE]

    def _blazeface(self, frame: np.ndarray) -> np.ndarray:
        """Look at the whole frame, in parts only while nothing is found, and closer at each face to be sure of it."""
        height, width = frame.shape[:2]
        faces = np.empty((0, 5))
        for side in (max(height, width), min(height, width), max(1, min(height, width) // 2)):
            corners = [(left, top) for top in _starts(height, side) for left in _starts(width, side)]
            seen = blend(np.concatenate([self._look(frame, left, top, side) for left, top in corners]))
            closer = [self._closer(frame, face) for face in seen]
            faces = blend(np.concatenate([faces, *closer]))
            if len(faces):
                break
        faces[:, 1] -= BLAZE_FOREHEAD * (faces[:, 3] - faces[:, 1])
        return faces.astype(np.float32)

    def _closer(self, frame: np.ndarray, face: np.ndarray) -> np.ndarray:
        """The face [1, 5] seen so close that its box is steady, [0, 5] where it was no face after all."""
        sure = 0
        for _ in range(BLAZE_LOOKS):
            side = BLAZE_CLOSER * (face[2] - face[0])
            left, top = (face[:2] + face[2:4] - side) / 2
            seen = self._look(frame, round(left), round(top), max(1, round(side)))
            same = blend(seen[overlap(face, seen) > BLAZE_OVERLAP])
            if not len(same):
                break
            face, sure = same[0], max(sure, same[0, 4])
        return face[None] if sure > BLAZE_SURE else np.empty((0, 5))

    def _look(self, frame: np.ndarray, left: int, top: int, side: int) -> np.ndarray:
        """Boxes and scores [n, 5] of all sure anchors in a square of the frame, which is black outside."""
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
    """The model, ready to run. Raises ValueError where the device cannot."""
    core = ov.Core()
    try:
        return core.compile_model(model, device, properties)
    except RuntimeError as error:
        there = ", ".join(core.available_devices)
        raise ValueError(
            f"{device} cannot run the model: {str(error).strip().splitlines()[-1]} Devices here: {there}."
        ) from error


def decode_s3fd(maps: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Boxes and scores [n, 5] float32 of S3FD's maps after suppression, the surest first.

    maps: for strides 4, 8 ... 128, scores [2, h, w] before softmax (background, face) and offsets [4, h, w] of boxes
    from priors that are 4 strides wide and high. Source: S3FD (Zhang et al. 2017), the decoding of SSD.
    """
    found = []
    for stride, (scores, offsets) in zip(S3FD_STRIDES, maps, strict=True):
        score = 1 / (1 + np.exp(scores[0] - scores[1]))  # the softmax of two
        rows, columns = np.nonzero(score > S3FD_CANDIDATE)
        offset, size = offsets[:, rows, columns], 4 * stride
        centre = np.stack([columns, rows]) * stride + stride / 2 + offset[:2] * S3FD_VARIANCES[0] * size
        half = size * np.exp(offset[2:] * S3FD_VARIANCES[1]) / 2
        found.append(np.concatenate([centre - half, centre + half, score[None, rows, columns]]).T)
    faces = np.concatenate(found).astype(np.float32)
    faces, kept = faces[np.argsort(-faces[:, 4], kind="stable")], []
    while len(faces):
        best, faces = faces[0], faces[1:]
        kept.append(best)
        faces = faces[overlap(best, faces, pixel=1) <= S3FD_OVERLAP]
    return np.array(kept, np.float32).reshape(-1, 5)


def decode_blazeface(regressors: np.ndarray, classificators: np.ndarray) -> np.ndarray:
    """Boxes and scores [n, 5] of the sure anchors, in parts of the picture's side.

    regressors: [896, 16], pixels of centre, size and six points from the anchor; classificators: [896, 1], before the
    sigmoid. Source: BlazeFace (Bazarevsky et al. 2019), its model card.
    """
    score = 1 / (1 + np.exp(-np.clip(classificators[:, 0], -80, 80)))
    sure = score > SURE
    centre = _anchors()[sure] + regressors[sure, :2] / BLAZE_SIDE
    half = regressors[sure, 2:4] / BLAZE_SIDE / 2
    return np.concatenate([centre - half, centre + half, score[sure, None]], 1)


def blend(faces: np.ndarray) -> np.ndarray:
    """One box for each face [m, 5], the surest first: the mean of all that overlap it, weighted by their scores."""
    faces, kept = faces[np.argsort(-faces[:, 4], kind="stable")], []
    while len(faces):
        same = overlap(faces[0], faces) > BLAZE_OVERLAP
        box = np.average(faces[same, :4], axis=0, weights=faces[same, 4])
        kept.append([*box, faces[0, 4]])
        faces = faces[~same]
    return np.array(kept).reshape(-1, 5)


def overlap(face: np.ndarray, faces: np.ndarray, pixel: int = 0) -> np.ndarray:
    """Intersection over union of a box with each of `faces` [n]; `pixel` 1: the last pixel is inside a box."""
    corner, end = np.maximum(face[:2], faces[:, :2]), np.minimum(face[2:4], faces[:, 2:4])
    both = np.prod(np.maximum(end - corner + pixel, 0), 1)
    area, areas = np.prod(face[2:4] - face[:2] + pixel), np.prod(faces[:, 2:4] - faces[:, :2] + pixel, 1)
    return both / (area + areas - both)


def _anchors() -> np.ndarray:
    """Centres [896, 2] of BlazeFace's anchors, in parts of the picture's side, row by row."""
    centres = []
    for cells, count in BLAZE_GRIDS:
        y, x = (np.mgrid[:cells, :cells] + 0.5) / cells
        centres.append(np.stack([x, y], -1).reshape(-1, 2).repeat(count, 0))
    return np.concatenate(centres)


def _starts(length: int, side: int) -> list[int]:
    """Where squares begin that cover `length` pixels with at least half overlap; one that is too large is centred."""
    if side >= length:
        return [(length - side) // 2]
    count = -(-2 * (length - side) // side) + 1
    return [round(start) for start in np.linspace(0, length - side, count)]
