"""Talking heads that the repository draws itself: many faces, every one with a mouth whose shape is known exactly.

A head is a square picture without a mouth, drawn from a seed or made from a photo, and the place where its mouth goes.
`Head.frame` drops the jaw, paints the lips for one mouth shape and moves the head a little. All colours are BGR, as in
OpenCV and Wav2Lip; all lengths are pixels of the `SIZE` x `SIZE` canvas.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

SIZE = 256
PATCH = (104, 88)  # canvas pixels (width, height) around the mouth that are painted anew for each frame
FINE = 4  # the patch is painted this much finer, then averaged: smooth edges at any opening

# Where the face is in two photos, in their own pixels, read off once with the 468-point face mesh: both corners of the
# mouth, the chin, and the distance between the outer corners of the eyes.
ASTRONAUT = ((199.8, 140.0), (244.7, 141.5), (220.9, 174.0), 63.0)
HOPPER = ((230.9, 276.9), (305.6, 273.0), (271.3, 333.2), 124.9)
PHOTO_EYES = 80.0  # that distance on the canvas


@dataclass(frozen=True)
class Lips:
    """A mouth's place and looks: centre and half width at rest, thickness of both lips, colour, the chin's height on
    the canvas, and the mouth's angle in radians, clockwise."""

    centre: tuple[float, float]
    half_width: float
    upper: float
    lower: float
    colour: np.ndarray
    chin: float
    angle: float = 0.0

    @property
    def gap(self) -> float:
        """The distance between the lips at opening 1."""
        return 0.95 * self.half_width


class Head:
    """A face without a mouth on a canvas [SIZE, SIZE, 3], the lips to paint on it, and the face's box as a detector
    would give it: left, top, right, bottom."""

    def __init__(self, canvas: np.ndarray, lips: Lips, box: tuple[float, float, float, float]):
        self.canvas, self.lips, self.box = canvas, lips, box
        self.rows, self.columns = np.mgrid[:SIZE, :SIZE].astype(np.float32)
        self.jaw = self._jaw()

    def frame(
        self, opening: float, width: float, teeth: float, size: int = SIZE, motion=(0.0, 0.0, 0.0, 1.0)
    ) -> np.ndarray:
        """One picture [size, size, 3] uint8.

        opening: 0 (closed) to 1; width: -1 (rounded) to 1 (spread); teeth: how much of them is seen, 0 to 1.
        motion: right and down in canvas pixels, a turn in radians, a scale.
        """
        opening, width, teeth = float(opening), float(width), float(teeth)  # float64 would make the maps so, too
        drop = 0.6 * opening * self.lips.gap
        picture = cv2.remap(
            self.canvas, self.columns, self.rows - drop * self.jaw, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        self._paint(picture, opening, width, teeth)
        matrix = self._movement(motion, size)
        shrink = cv2.INTER_AREA if size < SIZE else cv2.INTER_LINEAR
        return cv2.warpAffine(picture, matrix, (size, size), flags=shrink, borderMode=cv2.BORDER_REFLECT_101)

    def moved(self, point, motion) -> np.ndarray:
        """Where a point (x, y) of the canvas is after the `motion` of `frame`, at the canvas's size."""
        return self._movement(motion, SIZE) @ (*point, 1)

    @staticmethod
    def _movement(motion, size: int) -> np.ndarray:
        right, down, turn, scale = motion
        matrix = cv2.getRotationMatrix2D((SIZE / 2, SIZE / 2), np.degrees(turn), scale)
        matrix[:, 2] += (right, down)
        return matrix * (size / SIZE)

    def _jaw(self) -> np.ndarray:
        """How far each pixel goes down with the jaw [SIZE, SIZE]: 1 from lower lip to chin, 0 above and far below."""
        (x, y), lips = self.lips.centre, self.lips
        down = (self.rows - y) / (lips.chin - y)
        start = np.clip(down / 0.35, 0, 1)
        stop = np.clip((2.1 - down) / 1.0, 0, 1)
        across = np.exp(-(((self.columns - x) / (2.3 * lips.half_width)) ** 4))
        return (start * start * (3 - 2 * start) * stop * across).astype(np.float32)

    def _paint(self, picture: np.ndarray, opening: float, width: float, teeth: float) -> None:
        """Paint the mouth into `picture`, in place: lips, the line or the hole between them, tongue, teeth."""
        lips = self.lips
        across = np.linspace(-1, 1, 41)
        bulge = 1 - across**2
        half = lips.half_width * (1 + 0.24 * width)
        gap = opening * lips.gap
        pout = 1 + 0.45 * max(0.0, -width)
        bow = 1 - 0.25 * np.exp(-((across / 0.16) ** 2))
        upper_in = -0.3 * gap * bulge**0.7 + 0.06 * half * across**2
        lower_in = 0.7 * gap * bulge**0.7 + 0.06 * half * across**2
        upper_out = upper_in - lips.upper * pout * (1 - np.abs(across) ** 2.2) * bow - 0.4
        lower_out = lower_in + lips.lower * pout * (1 - np.abs(across) ** 2.6) + 0.4
        middle = lower_in + 0.5 * (lower_out - lower_in)

        corner = np.array(lips.centre, int) - np.array(PATCH) // 2
        turn = np.array([[np.cos(lips.angle), -np.sin(lips.angle)], [np.sin(lips.angle), np.cos(lips.angle)]])

        def fill(image: np.ndarray, above: np.ndarray, below: np.ndarray, colour) -> None:
            edges = np.stack([np.tile(across * half, 2), np.concatenate([above, below])], 1)
            edges = np.concatenate([edges[: len(across)], edges[len(across) :][::-1]])
            points = (edges @ turn.T + np.array(lips.centre) - corner) * FINE
            cv2.fillPoly(image, [np.round(points * 16).astype(np.int32)], colour, cv2.LINE_AA, 4)

        cover = np.zeros((PATCH[1] * FINE, PATCH[0] * FINE), np.uint8)
        fill(cover, upper_out, lower_out, 255)
        colour = np.zeros((*cover.shape, 3), np.uint8)
        colour[:] = lips.colour
        fill(colour, upper_out, upper_in, (0.86 * lips.colour).tolist())
        shine = np.minimum(255, 1.13 * lips.colour).tolist()
        fill(colour, middle - 0.22 * lips.lower, middle + 0.12 * lips.lower, shine)
        colour = cv2.GaussianBlur(colour, (0, 0), 0.8 * FINE)
        line = max(0.0, 0.7 - 0.5 * gap)  # closed lips still show the line between them
        fill(colour, upper_in - line, lower_in + line, (28, 20, 52))
        if gap > 1.5:
            hole = np.zeros_like(cover)
            fill(hole, upper_in, lower_in, 255)
            inside = colour.copy()
            tongue = lower_in - max(0.0, opening - 0.25) * 0.6 * lips.gap * bulge
            fill(inside, tongue, lower_in + 1, (78, 72, 148))
            if teeth > 0.05:
                edge = upper_in + teeth * min(0.30 * lips.gap, 0.75 * gap) * bulge**0.3
                fill(inside, upper_in - 1, edge, (205, 222, 230))
            colour = _over(colour, hole, inside).astype(np.uint8)

        colour, cover = (cv2.resize(x, PATCH, interpolation=cv2.INTER_AREA) for x in (colour, cover))
        where = np.s_[corner[1] : corner[1] + PATCH[1], corner[0] : corner[0] + PATCH[0]]
        picture[where] = _over(picture[where], cover, colour).astype(np.uint8)


def _over(below: np.ndarray, mask: np.ndarray, colour) -> np.ndarray:
    """`colour` (one, or a picture) over a picture where `mask` (uint8) is set."""
    weight = mask[..., None] / 255.0
    return below * (1 - weight) + np.asarray(colour) * weight


class Easel:
    """A picture [2 SIZE, 2 SIZE, 3] to paint on in soft-edged shapes, in canvas pixels."""

    def __init__(self, rng: np.random.Generator):
        self.rng, self.n = rng, 2 * SIZE
        self.picture = np.zeros((self.n, self.n, 3), np.float32)

    def soft(self, grain: float, amount: float, channels: int = 1) -> np.ndarray:
        """Smooth noise of spots as large as `grain`, [2 SIZE, 2 SIZE, channels]."""
        cells = max(4, int(self.n / grain))
        coarse = self.rng.normal(0, amount, (cells, cells, channels)).astype(np.float32)
        return cv2.resize(coarse, (self.n, self.n), interpolation=cv2.INTER_CUBIC).reshape(self.n, self.n, channels)

    def polygon(self, points, blur: float = 1.5) -> np.ndarray:
        """Mask of a polygon [n, 2]."""
        mask = np.zeros((self.n, self.n), np.uint8)
        cv2.fillPoly(mask, [np.round(np.asarray(points) * 2 * 16).astype(np.int32)], 255, cv2.LINE_AA, 4)
        return cv2.GaussianBlur(mask, (0, 0), blur)

    def ellipse(self, x: float, y: float, across: float, down: float, blur: float = 1.5) -> np.ndarray:
        """Mask of an ellipse with these half axes."""
        t = np.linspace(0, 2 * np.pi, 72)
        return self.polygon(np.stack([x + across * np.cos(t), y + down * np.sin(t)], 1), blur)

    def stripe(self, x, above, below, blur: float = 1.0) -> np.ndarray:
        """Mask of what lies between two curves over `x`."""
        return self.polygon(np.concatenate([np.stack([x, above], 1), np.stack([x, below], 1)[::-1]]), blur)

    def paint(self, mask: np.ndarray, colour, strength: float = 1.0) -> None:
        """Lay a colour, or a picture, over a mask."""
        self.picture = _over(self.picture, (strength * mask).astype(np.uint8), colour).astype(np.float32)


@dataclass(frozen=True)
class Look:
    """Colours and measures of a drawn person, on the canvas: half axes of the face, heights of eyes, nose and mouth."""

    skin: np.ndarray
    hair: np.ndarray
    iris: np.ndarray
    across: float
    down: float
    jaw: float
    eyes: float
    apart: float
    eye: float
    mouth: float


HAIR = np.array([[18, 18, 22], [30, 48, 78], [70, 130, 180], [40, 60, 130], [150, 155, 160]], float)
IRIS = np.array([[120, 90, 50], [40, 60, 90], [90, 110, 80], [30, 40, 50]], float)
MIDDLE = SIZE / 2


def drawn_head(seed: int) -> Head:
    """A head drawn from scratch; every seed is another person, lit and dressed in another way."""
    rng = np.random.default_rng([seed, 20])
    easel = Easel(rng)
    tone = rng.uniform()
    skin = (1 - tone) * np.array([186, 205, 236.0]) + tone * np.array([62, 88, 138.0]) + rng.normal(0, 6, 3)
    hair, iris = HAIR[rng.integers(len(HAIR))], IRIS[rng.integers(len(IRIS))]
    across, down, jaw = rng.uniform(62, 74), rng.uniform(86, 98), rng.uniform(0.12, 0.36)
    eyes = MIDDLE - rng.uniform(3, 11)
    apart, eye = across * rng.uniform(0.40, 0.46), rng.uniform(10.5, 13.5)
    look = Look(skin, hair, iris, across, down, jaw, eyes, apart, eye, MIDDLE + down * rng.uniform(0.53, 0.60))

    _background(easel, look)
    face, side = _face(easel, look)
    _nose(easel, look, side)
    _eyes(easel, look)
    _fringe(easel, look)
    half, lower = look.across * rng.uniform(0.33, 0.40), rng.uniform(5.5, 8.5)
    easel.paint(easel.ellipse(MIDDLE, look.mouth + lower + 6, half * 0.6, 3, 4), skin * 0.6, 0.3)
    if rng.uniform() < 0.3:
        beard = np.minimum(face, easel.ellipse(MIDDLE, look.mouth + 6, look.across * 0.8, 40, 12))
        easel.paint(beard, hair * 0.6 + 20, rng.uniform(0.15, 0.4))

    picture = np.clip(easel.picture, 0, 255).astype(np.uint8)
    canvas = cv2.resize(picture, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    rouge = np.array([rng.uniform(0.45, 0.7), rng.uniform(0.42, 0.66), rng.uniform(0.8, 1.0)])
    colour = np.clip(skin * rouge * 0.95, 20, 235)
    chin = MIDDLE + look.down
    lips = Lips((MIDDLE, look.mouth), half, rng.uniform(3.6, 5.8), lower, colour, chin)
    return Head(canvas, lips, (MIDDLE - look.across, MIDDLE - 0.62 * look.down, MIDDLE + look.across, chin))


def _background(easel: Easel, look: Look) -> None:
    """A spotted wall, shoulders, a neck, and for some long hair behind it."""
    rng = easel.rng
    easel.picture[:] = rng.uniform(40, 215, 3)
    easel.picture += easel.soft(60, 22, 3)
    easel.picture += easel.soft(12, 5)
    shirt = rng.uniform(20, 220, 3)
    shoulders = easel.polygon([(10, 262), (30, 236), (86, 218), (170, 218), (226, 236), (246, 262)], 2)
    if rng.uniform() < 0.5:
        long_hair = easel.ellipse(MIDDLE, MIDDLE + 12, look.across * 1.22, look.down * 1.1, 3)
        easel.paint(long_hair, look.hair * 0.8 + easel.soft(5, 10))
    easel.paint(easel.polygon([(98, 180), (158, 180), (166, 236), (90, 236)], 2), look.skin * 0.72)
    easel.paint(shoulders, shirt + easel.soft(20, 8))


def _face(easel: Easel, look: Look) -> tuple[np.ndarray, float]:
    """Ears, and an oval that narrows to the chin, lit as an ellipsoid by one lamp; its mask and the lamp's side."""
    rng = easel.rng
    t = np.linspace(0, 2 * np.pi, 96)
    narrow = 1 - look.jaw * np.clip(np.sin(t), 0, 1) ** 2
    oval = np.stack([MIDDLE + look.across * np.cos(t) * narrow, MIDDLE + look.down * np.sin(t)], 1)
    face = easel.polygon(oval, 1.5)
    y, x = np.mgrid[: easel.n, : easel.n].astype(np.float32) / 2
    u, v = (x - MIDDLE) / look.across, (y - MIDDLE) / look.down
    depth = np.sqrt(np.clip(1 - 0.8 * u**2 - 0.7 * v**2, 0.05, 1))
    lamp = np.array([rng.uniform(-0.6, 0.6), rng.uniform(-0.6, 0.1), 1.0])
    lamp /= np.linalg.norm(lamp)
    light = 0.48 + 0.58 * np.clip(0.9 * u * lamp[0] + 0.8 * v * lamp[1] + depth * lamp[2], 0, 1)
    for side in (-1, 1):
        easel.paint(easel.ellipse(MIDDLE + side * look.across * 0.98, MIDDLE + 2, 9, 18), look.skin * 0.75)
    easel.paint(face, look.skin * light[..., None] + easel.soft(30, 3) + easel.soft(3, 2.5))
    for side in (-1, 1):
        cheek = easel.ellipse(MIDDLE + side * look.across * 0.52, MIDDLE + 26, 17, 13, 12)
        easel.paint(cheek, look.skin * (0.7, 0.75, 1.05), 0.25)
    return face, float(np.sign(lamp[0]) or 1)


def _nose(easel: Easel, look: Look, side: float) -> None:
    """A side in the shade, a bright ridge, nostrils."""
    rng, skin, x = easel.rng, look.skin, MIDDLE
    tip = MIDDLE + look.down * rng.uniform(0.24, 0.30)
    wide = rng.uniform(9, 13)
    top = look.eyes + 4
    shade = [(x - side * 3, top), (x - side * 6, top + 10), (x - side * wide, tip), (x, tip + 4), (x, top)]
    easel.paint(easel.polygon(shade, 5), skin * 0.6, 0.45)
    ridge = easel.ellipse(x + side * 1.5, (look.eyes + tip) / 2 + 4, 3, 17, 4)
    easel.paint(ridge, np.minimum(255, skin * 1.18), 0.4)
    easel.paint(easel.ellipse(x, tip + 4, wide, 3.2, 3), skin * 0.52, 0.55)
    for side in (-1, 1):
        easel.paint(easel.ellipse(x + side * wide * 0.5, tip + 2.5, 2.7, 1.7, 1.4), skin * 0.3, 0.8)


def _eyes(easel: Easel, look: Look) -> None:
    """Eyes with lashes, and brows."""
    rng, y, eye = easel.rng, look.eyes, look.eye
    brow, thick = rng.uniform(11, 15), rng.uniform(1.6, 3.2)
    k = np.linspace(-1, 1, 25)
    upper, lower = y - 0.47 * eye * (1 - k**2), y + 0.34 * eye * (1 - k**2)
    for side in (-1, 1):
        x = MIDDLE + side * look.apart
        easel.paint(easel.ellipse(x, y - 1, eye * 1.35, eye * 0.85, 5), look.skin * 0.62, 0.4)
        white = easel.stripe(x + eye * k, upper, lower)
        easel.paint(white, (225, 228, 232))
        pupil = x + rng.uniform(-1, 1)
        easel.paint(np.minimum(white, easel.ellipse(pupil, y - 0.4, 0.44 * eye, 0.44 * eye, 1)), look.iris)
        easel.paint(np.minimum(white, easel.ellipse(pupil, y - 0.4, 0.2 * eye, 0.2 * eye, 0.8)), (12, 10, 10))
        easel.paint(easel.ellipse(pupil - 1.6, y - 2.2, 1, 1, 0.8), (250, 250, 250))
        easel.paint(easel.stripe(x + eye * k * 1.04, upper - 1.5, upper + 0.4), (25, 25, 32))
        arch = y - brow - 3 * (1 - (k + 0.3 * side) ** 2)
        easel.paint(easel.stripe(x + 1.25 * eye * k, arch - thick, arch + thick, 1.5), 0.7 * look.hair, 0.85)


def _fringe(easel: Easel, look: Look) -> None:
    """Hair over the forehead, parted somewhere."""
    rng = easel.rng
    line = MIDDLE - look.down * rng.uniform(0.55, 0.72)
    t = np.linspace(np.pi, 2 * np.pi, 48)
    crown = np.stack([MIDDLE + look.across * 1.1 * np.cos(t), MIDDLE - 2 + look.down * 1.12 * np.sin(t)], 1)
    part = rng.uniform(-30, 30)
    k = np.linspace(1, -1, 25)
    edge = line + 26 * np.abs(k - part / 60) ** 2.5 + rng.normal(0, 1, 25)
    fringe = np.stack([MIDDLE + look.across * 1.02 * k, edge], 1)
    easel.paint(easel.polygon(np.concatenate([crown, fringe]), 2), look.hair + easel.soft(3, 12))


def photo_head(photo: np.ndarray, place, seed: int | None = None) -> Head:
    """A head from a photo [H, W, 3] BGR: its mouth is covered with the skin around it.

    place: where the face is (`ASTRONAUT`, `HOPPER`). A seed changes the person: mirrored or not, in other colours, with
    another shape of face; without one the photo stays as it is.
    """
    left, right, chin, eyes = (np.asarray(p, np.float32) for p in place)
    rng = np.random.default_rng([0 if seed is None else seed, 21])
    mouth = (left + right) / 2
    stretch = np.ones(2) if seed is None else rng.uniform(0.9, 1.12, 2)
    scale = stretch * PHOTO_EYES / eyes
    centre = np.array([MIDDLE, 182.0])
    matrix = np.column_stack([np.diag(scale), centre - scale * mouth])
    canvas = cv2.warpAffine(photo, matrix, (SIZE, SIZE), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REFLECT_101)
    half = float(np.linalg.norm(right - left) / 2 * scale[0])
    bottom = float(centre[1] + (chin[1] - mouth[1]) * scale[1])
    slope = (right - left) * scale
    angle = float(np.arctan2(slope[1], slope[0]))

    hole = np.zeros((SIZE, SIZE), np.uint8)
    middle, axes = (int(centre[0]), int(centre[1]) + 1), (int(half * 1.12), int(half * 0.52))
    cv2.ellipse(hole, middle, axes, np.degrees(angle), 0, 360, 255, -1)
    canvas = cv2.inpaint(canvas, hole, 5, cv2.INPAINT_TELEA)
    canvas = _over(canvas, cv2.GaussianBlur(hole, (0, 0), 2), cv2.GaussianBlur(canvas, (0, 0), 4))
    grain = rng.normal(0, 2.0, (SIZE, SIZE, 1))
    canvas = np.clip(canvas + grain * (hole[..., None] > 0), 0, 255).astype(np.uint8)
    if seed is not None:
        canvas = _recoloured(canvas, rng)
        if rng.uniform() < 0.5:
            canvas, angle, centre[0] = np.ascontiguousarray(canvas[:, ::-1]), -angle, SIZE - centre[0]
    skin = canvas[int(centre[1] + 0.8 * half), int(centre[0])].astype(float)
    lips = Lips(
        tuple(centre), half, 0.22 * half, 0.32 * half, np.clip(skin * (0.6, 0.55, 0.84), 15, 235), bottom, angle
    )
    reach, above = stretch * (66, 112)  # as detectors see faces whose eyes are PHOTO_EYES apart
    return Head(canvas, lips, (centre[0] - reach, centre[1] - above, centre[0] + reach, bottom))


def _recoloured(canvas: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same picture in another tint, lightness and saturation."""
    hls = cv2.cvtColor(canvas, cv2.COLOR_BGR2HLS).astype(np.float32)
    hls[..., 0] = (hls[..., 0] + rng.uniform(-6, 6)) % 180
    hls[..., 1] = np.clip(hls[..., 1] * rng.uniform(0.75, 1.15) + rng.uniform(-8, 8), 0, 255)
    hls[..., 2] = np.clip(hls[..., 2] * rng.uniform(0.6, 1.25), 0, 255)
    return cv2.cvtColor(hls.astype(np.uint8), cv2.COLOR_HLS2BGR)
