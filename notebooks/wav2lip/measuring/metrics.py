"""Metrics of how well lips follow a sound, computed on the pixels of the result.

A face mesh measures the mouth in each frame, whatever drew it. The expert, SyncNet, scores picture and sound together.
PSNR and SSIM compare pictures with the true ones. The last functions give the sound of negative controls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import openvino as ov
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from notebooks.wav2lip.pipeline import MEL_RATE, SAMPLE_RATE, WINDOW

MESH_SIDE = 192  # pixels of the mesh's input
MESH_CROPS = 1.2, 1.4, 1.6  # sides of three crops, in longer sides of the face's box; their mean is the steadier

# Points of the mesh, by the numbering of its model card
INNER_LIPS = 13, 14  # in the middle
MOUTH_CORNERS = 78, 308  # inner ones
EYE_CORNERS = 33, 263  # outer ones

SHAPES = "closed", "round", "open"  # classes of phonemes that a mouth can show

FRAMES = 5  # consecutive video frames that the expert sees
SHIFTS = 15  # largest shift between sound and picture in frames, either way, as in SyncNet

Mouth = tuple[np.ndarray, np.ndarray]  # opening [n] and width [n], in distances between the outer corners of the eyes


class FaceMesh:
    """MediaPipe's face mesh (Kartynnik et al. 2019), 468 points of a face, by OpenVINO from its .tflite file.

    Raises ValueError for another file.
    """

    def __init__(self, path: str | Path, device: str = "CPU"):
        try:
            model = ov.Core().read_model(path)
            model.reshape([len(MESH_CROPS), MESH_SIDE, MESH_SIDE, 3])
            self._model = ov.Core().compile_model(model, device, {"INFERENCE_PRECISION_HINT": "f32"})
            self._points, self._presence = (self._model.output(name) for name in ("conv2d_20", "conv2d_30"))
        except RuntimeError as error:
            raise ValueError(f"{path} is not the face mesh. Give face_landmark.tflite.") from error

    def __call__(self, frames: Sequence[np.ndarray], boxes: np.ndarray) -> np.ndarray:
        """Points float32 [n, 468, 3] (x, y, depth, in pixels of the frame) of one upright face in each frame.

        frames: n times [H, W, 3] uint8, BGR. boxes: [n, 4], or one [4] for all: left, top, right, bottom of the face in
        pixels, as FaceDetector gives them. Raises ValueError for a frame that shows no face there.
        """
        meshes = []
        for number, (frame, box) in enumerate(zip(frames, np.broadcast_to(boxes, (len(frames), 4)), strict=True)):
            left, top, right, bottom = box
            sides = np.array(MESH_CROPS)[:, None] * max(right - left, bottom - top)
            corners = (np.array([left + right, top + bottom]) - sides) / 2
            result = self._model(np.stack([_crop(frame, *place) for place in zip(corners, sides, strict=True)]))
            if result[self._presence].mean() < 0:  # a logit
                raise ValueError(f"Frame {number} shows no face in {np.round(box).tolist()}. Give its true box.")
            points = result[self._points].reshape(-1, 468, 3) * (sides / MESH_SIDE)[..., None]  # [crops, 468, 3]
            points[..., :2] += corners[:, None]
            meshes.append(points.mean(0))  # [468, 3]
        return np.stack(meshes).astype(np.float32)


def _crop(frame: np.ndarray, corner: np.ndarray, side: np.ndarray) -> np.ndarray:
    """A square of the frame, black outside, as the mesh's input: [192, 192, 3] float32, RGB in 0..1."""
    scale = side.item() / (2 * MESH_SIDE)  # twice as fine at first, then averaged, which avoids aliasing
    shift = corner + scale / 2 - 0.5  # from centre of pixel to centre of pixel
    matrix = np.array([[scale, 0, shift[0]], [0, scale, shift[1]]])
    fine = cv2.warpAffine(frame, matrix, (2 * MESH_SIDE,) * 2, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
    picture = cv2.resize(fine, (MESH_SIDE, MESH_SIDE), interpolation=cv2.INTER_AREA)
    return picture[..., ::-1].astype(np.float32) / 255


def mouth(points: np.ndarray) -> Mouth:
    """The gap between the lips and the distance of the mouth's corners in each frame's mesh [n, 468, 3]."""

    def distance(pair):
        return np.linalg.norm(points[:, pair[0], :2] - points[:, pair[1], :2], axis=1)

    return distance(INNER_LIPS) / distance(EYE_CORNERS), distance(MOUTH_CORNERS) / distance(EYE_CORNERS)


def correlation(measured: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> float:
    """Pearson's correlation over time, as a mean over clips ([n] each). A constant measurement counts as 0.

    Raises ValueError for a constant truth.
    """
    values = []
    for number, (a, b) in enumerate(zip(measured, truth, strict=True)):
        if np.ptp(b) == 0:
            raise ValueError(f"The truth of clip {number} never moves: nothing can be compared with it. Leave it out.")
        values.append(np.corrcoef(a, b)[0, 1] if np.ptp(a) else 0.0)
    return float(np.mean(values))


def shape_means(shapes: Mouth, classes: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Mean opening and width of the mouth in each of SHAPES; frames of other classes are left out.

    Raises ValueError when a class has no frame.
    """
    opening, width = (np.asarray(values) for values in shapes)
    means = {}
    for name in SHAPES:
        rows = np.asarray(classes) == name
        if not rows.any():
            raise ValueError(f"No frame is of the class {name!r}. Give more speech.")
        means[name] = float(opening[rows].mean()), float(width[rows].mean())
    return means


def shape_accuracy(shapes: Mouth, truth: Mouth, classes: Sequence[str]) -> float:
    """The share of frames in which the mouth has the shape of the current phoneme, as a mean over SHAPES.

    A frame is right when its opening and width are nearest to the true means of its class, in units of the true
    standard deviations. A constant mouth has 1/3. Raises ValueError when a class has no frame.
    """
    classes, spread = np.asarray(classes), np.std(truth, axis=1)
    means = np.array(list(shape_means(truth, classes).values()))  # [classes, 2]
    distances = np.linalg.norm((np.transpose(shapes)[:, None] - means) / spread, axis=2)  # [frames, classes]
    guess = np.array(SHAPES)[distances.argmin(1)]
    return float(np.mean([(guess[classes == name] == name).mean() for name in SHAPES]))


def sharpness(picture: np.ndarray) -> float:
    """The variance of the Laplacian of a picture's grey levels [H, W, 3] uint8, BGR: blur lowers it."""
    return float(cv2.Laplacian(cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY), cv2.CV_64F).var())


def picture_quality(result: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """PSNR (dB) and SSIM of the lower halves of face crops [n, H, W, 3] uint8; SSIM as Wang et al. 2004 define it."""
    result, truth = (faces[:, faces.shape[1] // 2 :] for faces in (result, truth))
    as_defined = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    ssim = [structural_similarity(a, b, channel_axis=-1, **as_defined) for a, b in zip(result, truth, strict=True)]
    return float(peak_signal_noise_ratio(truth, result)), float(np.mean(ssim))


def sync_confidence(expert: Callable, faces: np.ndarray, mel: np.ndarray, fps: float = 25) -> tuple[int, float]:
    """The offset (frames by which the picture comes too late) and the confidence of SyncNet (Chung and Zisserman 2016).

    The offset is the shift with the least mean distance between the embeddings of five frames and of a window of
    sound. The confidence is the median of the mean distances over all shifts, less the least one.

    expert: returns embeddings [B, D] of sound [B, 1, 80, 16] and of lower halves of faces [B, 15, H/2, W] (BGR in
    0..1). faces: crops [n, H, W, 3] uint8, BGR. mel: [80, T]. Raises ValueError for a clip that is too short.
    """
    starts = [int(i * MEL_RATE / fps) for i in range(len(faces) - FRAMES + 1)]
    starts = [start for start in starts if start + WINDOW <= mel.shape[1]]
    if len(starts) <= SHIFTS:
        raise ValueError(f"The clip has {len(faces)} frames: SyncNet needs {SHIFTS + FRAMES} and as much sound.")
    lower = faces[:, faces.shape[1] // 2 :].transpose(0, 3, 1, 2).astype(np.float32) / 255
    lips = np.stack([np.concatenate(lower[i : i + FRAMES]) for i in range(len(starts))])  # [B, 15, H/2, W]
    sounds = np.stack([mel[None, :, start : start + WINDOW] for start in starts]).astype(np.float32)  # [B, 1, 80, 16]
    audio, face = (np.asarray(embedding) for embedding in expert(sounds, lips))  # [B, D] each
    distances = np.linalg.norm(face[:, None] - audio, axis=2)  # [frame, sound]
    offsets = range(-SHIFTS, SHIFTS + 1)
    means = np.array([np.diagonal(distances, -offset).mean() for offset in offsets])
    return offsets[int(means.argmin())], float(np.median(means) - means.min())


def shuffled(samples: np.ndarray, rng: np.random.Generator, seconds: float = 0.4) -> np.ndarray:
    """A negative control: pieces of the sound in another order."""
    pieces = np.array_split(samples, max(2, round(len(samples) / SAMPLE_RATE / seconds)))
    order = rng.permutation(len(pieces))
    while (order == np.arange(len(pieces))).all():
        order = rng.permutation(len(pieces))
    return np.concatenate([pieces[index] for index in order])


def delayed(samples: np.ndarray, frames: int, fps: float = 25) -> np.ndarray:
    """A negative control: the sound late by some video frames, or early (below 0), filled up with zeros."""
    shift = round(frames * SAMPLE_RATE / fps)
    padded = np.pad(samples, (max(shift, 0), max(-shift, 0)))
    return padded[: len(samples)] if shift >= 0 else padded[-len(samples) :]


def loudness(samples: np.ndarray, times: np.ndarray, seconds: float = 0.12) -> np.ndarray:
    """A baseline: a mouth that opens with loudness, the root mean square [n] of the sound around `times` (s)."""
    energy = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype=np.float64))])
    bounds = np.asarray(times)[:, None] + np.array([-0.5, 0.5]) * seconds
    begin, end = np.clip(np.round(bounds * SAMPLE_RATE).astype(int), 0, len(samples)).T
    return np.sqrt((energy[end] - energy[begin]) / (seconds * SAMPLE_RATE))
