"""Draws talking heads: many faces, each with a mouth whose shape is known exactly.

A head is a square picture without a mouth, drawn from a seed or derived from a photo, and the position of its mouth.
`Head.frame` drops the jaw, paints the lips for one mouth shape and moves the head a little. All colours are BGR, as in
OpenCV and Wav2Lip. All lengths are pixels of the `SIZE` x `SIZE` canvas.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

SIZE = 256
PATCH = (104, 88)  # canvas pixels (width, height) around the mouth that are repainted for each frame
SUPERSAMPLING = 4  # the patch is painted this much finer, then averaged, which smooths the edges

# Landmarks of two photos in their own pixels, measured once with the 468-point face mesh: both corners of the mouth,
# the chin, and the distance between the outer corners of the eyes.
ASTRONAUT = ((199.8, 140.0), (244.7, 141.5), (220.9, 174.0), 63.0)
HOPPER = ((230.9, 276.9), (305.6, 273.0), (271.3, 333.2), 124.9)
PHOTO_EYE_DISTANCE = 80.0  # the last of these, on the canvas

# The astronaut's smile on the canvas, measured with the same mesh: outlines of the lips as heights over columns, and
# the rows between which the face moves when the lips close
SMILE_COLUMNS = np.linspace(98, 158, 13)
SMILE_OUTLINES = {
    "top": (180.2, 179.0, 178.8, 178.8, 178.9, 179.5, 180.3, 180.0, 179.7, 180.0, 180.5, 181.0, 182.7),
    "upper teeth": (181.1, 180.9, 180.7, 181.7, 182.6, 183.4, 183.9, 183.8, 183.4, 182.9, 182.3, 182.8, 183.1),
    "lower teeth": (181.1, 181.8, 186.1, 188.7, 190.5, 191.6, 192.2, 192.0, 191.2, 189.9, 187.7, 184.0, 183.1),
    "bottom": (180.2, 186.7, 191.9, 195.6, 197.9, 198.9, 199.5, 199.2, 198.2, 196.4, 193.0, 188.5, 182.7),
}
SMILE_ROWS = 172, 221  # below the nose, above the end of the chin
LIPSTICK = 0.5, 0.45, 0.78  # factors of blue, green and red


@dataclass(frozen=True)
class Lips:
    """Position and appearance of a mouth on the canvas."""

    centre: tuple[float, float]  # x, y
    half_width: float  # at rest
    upper: float  # thickness of the upper lip
    lower: float  # thickness of the lower lip
    colour: np.ndarray
    chin_y: float
    angle: float = 0.0  # radians, clockwise

    @property
    def max_gap(self) -> float:
        """The distance between the lips at opening 1."""
        return 0.95 * self.half_width


class Head:
    """A face without a mouth on a canvas [SIZE, SIZE, 3], and the lips to paint on it.

    box: the face's box as a detector would give it: left, top, right, bottom.
    """

    def __init__(self, canvas: np.ndarray, lips: Lips, box: tuple[float, float, float, float]):
        self.canvas = canvas
        self.lips = lips
        self.box = box
        self.rows, self.columns = np.mgrid[:SIZE, :SIZE].astype(np.float32)  # [SIZE, SIZE] each
        self.jaw = self._jaw_weights()  # [SIZE, SIZE]

    def frame(
        self, opening: float, width: float, teeth: float, size: int = SIZE, motion=(0.0, 0.0, 0.0, 1.0)
    ) -> np.ndarray:
        """One picture [size, size, 3] uint8.

        opening: 0 (closed) to 1. width: -1 (rounded) to 1 (spread). teeth: visibility, 0 to 1.
        motion: shift to the right and down in canvas pixels, rotation in radians, scale.
        """
        opening, width, teeth = float(opening), float(width), float(teeth)  # numpy scalars would make the maps float64
        drop = 0.6 * opening * self.lips.max_gap
        picture = cv2.remap(
            self.canvas, self.columns, self.rows - drop * self.jaw, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        self._paint(picture, opening, width, teeth)
        matrix = self._affine(motion, size)
        shrink = cv2.INTER_AREA if size < SIZE else cv2.INTER_LINEAR
        return cv2.warpAffine(picture, matrix, (size, size), flags=shrink, borderMode=cv2.BORDER_REFLECT_101)

    def transformed(self, point, motion) -> np.ndarray:
        """The position of a point (x, y) of the canvas after the `motion` of `frame`, at the canvas's size."""
        return self._affine(motion, SIZE) @ (*point, 1)

    @staticmethod
    def _affine(motion, size: int) -> np.ndarray:
        """The affine matrix [2, 3] of a motion, from the canvas to a picture of `size` pixels."""
        right, down, rotation, scale = motion
        matrix = cv2.getRotationMatrix2D((SIZE / 2, SIZE / 2), np.degrees(rotation), scale)
        matrix[:, 2] += (right, down)
        return matrix * (size / SIZE)

    def _jaw_weights(self) -> np.ndarray:
        """How far each pixel moves with the jaw [SIZE, SIZE]: 1 from lower lip to chin, 0 above and far below."""
        lips = self.lips
        x, y = lips.centre
        down = (self.rows - y) / (lips.chin_y - y)
        start = np.clip(down / 0.35, 0, 1)
        stop = np.clip((2.1 - down) / 1.0, 0, 1)
        across = np.exp(-(((self.columns - x) / (2.3 * lips.half_width)) ** 4))
        return (_smooth(start) * stop * across).astype(np.float32)

    def _paint(self, picture: np.ndarray, opening: float, width: float, teeth: float) -> None:
        """Paint the mouth into `picture` in place: lips, the line or the hole between them, tongue, teeth."""
        lips = self.lips

        # Outlines of both lips, as heights over 41 points across the mouth
        across = np.linspace(-1, 1, 41)
        bulge = 1 - across**2
        half = lips.half_width * (1 + 0.24 * width)
        gap = opening * lips.max_gap
        pout = 1 + 0.45 * max(0.0, -width)
        bow = 1 - 0.25 * np.exp(-((across / 0.16) ** 2))  # the dip in the middle of the upper lip
        upper_in = -0.3 * gap * bulge**0.7 + 0.06 * half * across**2
        lower_in = 0.7 * gap * bulge**0.7 + 0.06 * half * across**2
        upper_out = upper_in - lips.upper * pout * (1 - np.abs(across) ** 2.2) * bow - 0.4
        lower_out = lower_in + lips.lower * pout * (1 - np.abs(across) ** 2.6) + 0.4
        middle = lower_in + 0.5 * (lower_out - lower_in)

        corner = np.array(lips.centre, int) - np.array(PATCH) // 2  # of the patch on the canvas
        rotation = np.array([[np.cos(lips.angle), -np.sin(lips.angle)], [np.sin(lips.angle), np.cos(lips.angle)]])

        def fill(image: np.ndarray, above: np.ndarray, below: np.ndarray, colour) -> None:
            upper_edge = np.stack([across * half, above], 1)  # [41, 2]
            lower_edge = np.stack([across * half, below], 1)[::-1]
            edges = np.concatenate([upper_edge, lower_edge])
            points = (edges @ rotation.T + np.array(lips.centre) - corner) * SUPERSAMPLING
            cv2.fillPoly(image, [np.round(points * 16).astype(np.int32)], colour, cv2.LINE_AA, 4)

        # Lips: their mask, their colour, darker above and with a shine below
        cover = np.zeros((PATCH[1] * SUPERSAMPLING, PATCH[0] * SUPERSAMPLING), np.uint8)
        fill(cover, upper_out, lower_out, 255)
        colour = np.zeros((*cover.shape, 3), np.uint8)
        colour[:] = lips.colour
        fill(colour, upper_out, upper_in, (0.86 * lips.colour).tolist())
        shine = np.minimum(255, 1.13 * lips.colour).tolist()
        fill(colour, middle - 0.22 * lips.lower, middle + 0.12 * lips.lower, shine)
        colour = cv2.GaussianBlur(colour, (0, 0), 0.8 * SUPERSAMPLING)

        # The opening: a dark line or hole, with tongue and teeth when it is wide enough
        line = max(0.0, 0.7 - 0.5 * gap)  # closed lips still show the line between them
        fill(colour, upper_in - line, lower_in + line, (28, 20, 52))
        if gap > 1.5:
            hole = np.zeros_like(cover)
            fill(hole, upper_in, lower_in, 255)
            inside = colour.copy()
            tongue = lower_in - max(0.0, opening - 0.25) * 0.6 * lips.max_gap * bulge
            fill(inside, tongue, lower_in + 1, (78, 72, 148))
            if teeth > 0.05:
                edge = upper_in + teeth * min(0.30 * lips.max_gap, 0.75 * gap) * bulge**0.3
                fill(inside, upper_in - 1, edge, (205, 222, 230))
            colour = _blend(colour, hole, inside).astype(np.uint8)

        # The patch, scaled down and blended into the picture
        colour, cover = (cv2.resize(x, PATCH, interpolation=cv2.INTER_AREA) for x in (colour, cover))
        patch = picture[corner[1] : corner[1] + PATCH[1], corner[0] : corner[0] + PATCH[0]]
        patch[:] = _blend(patch, cover, colour).astype(np.uint8)


def _blend(below: np.ndarray, mask: np.ndarray, colour) -> np.ndarray:
    """Lay `colour` (a single colour or a picture) over the picture `below` where the mask (uint8) is set."""
    weight = mask[..., None] / 255.0
    return below * (1 - weight) + np.asarray(colour) * weight


class Painter:
    """Paints shapes with soft edges on a picture [2 * SIZE, 2 * SIZE, 3]; all coordinates are canvas pixels."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.side = 2 * SIZE
        self.picture = np.zeros((self.side, self.side, 3), np.float32)

    def smooth_noise(self, grain: float, amount: float, channels: int = 1) -> np.ndarray:
        """Smooth noise with spots of about `grain` pixels, [2 * SIZE, 2 * SIZE, channels]."""
        cells = max(4, int(self.side / grain))
        coarse = self.rng.normal(0, amount, (cells, cells, channels)).astype(np.float32)
        noise = cv2.resize(coarse, (self.side, self.side), interpolation=cv2.INTER_CUBIC)
        return noise.reshape(self.side, self.side, channels)

    def polygon(self, points, blur: float = 1.5) -> np.ndarray:
        """Mask of a polygon [n, 2]."""
        mask = np.zeros((self.side, self.side), np.uint8)
        cv2.fillPoly(mask, [np.round(np.asarray(points) * 2 * 16).astype(np.int32)], 255, cv2.LINE_AA, 4)
        return cv2.GaussianBlur(mask, (0, 0), blur)

    def ellipse(self, x: float, y: float, across: float, down: float, blur: float = 1.5) -> np.ndarray:
        """Mask of an ellipse with these half axes."""
        t = np.linspace(0, 2 * np.pi, 72)
        return self.polygon(np.stack([x + across * np.cos(t), y + down * np.sin(t)], 1), blur)

    def band(self, x, above, below, blur: float = 1.0) -> np.ndarray:
        """Mask of the area between two curves over `x`."""
        return self.polygon(np.concatenate([np.stack([x, above], 1), np.stack([x, below], 1)[::-1]]), blur)

    def paint(self, mask: np.ndarray, colour, strength: float = 1.0) -> None:
        """Lay a colour, or a picture, over a mask."""
        self.picture = _blend(self.picture, (strength * mask).astype(np.uint8), colour).astype(np.float32)


@dataclass(frozen=True)
class Appearance:
    """Colours and measures of a drawn person, in canvas pixels."""

    skin: np.ndarray
    hair: np.ndarray
    iris: np.ndarray
    half_width: float  # of the face
    half_height: float  # of the face
    jaw_narrowing: float  # share of the width that the face loses towards the chin
    eye_y: float
    eye_offset: float  # of each eye from the middle of the face
    eye_half_width: float
    mouth_y: float


HAIR = np.array([[18, 18, 22], [30, 48, 78], [70, 130, 180], [40, 60, 130], [150, 155, 160]], float)
IRIS = np.array([[120, 90, 50], [40, 60, 90], [90, 110, 80], [30, 40, 50]], float)
CENTRE = SIZE / 2


def drawn_head(seed: int) -> Head:
    """A head drawn from scratch. Every seed gives another person, with other light and clothes."""
    rng = np.random.default_rng([seed, 20])
    painter = Painter(rng)
    tone = rng.uniform()
    skin = (1 - tone) * np.array([186, 205, 236.0]) + tone * np.array([62, 88, 138.0]) + rng.normal(0, 6, 3)
    hair, iris = HAIR[rng.integers(len(HAIR))], IRIS[rng.integers(len(IRIS))]
    half_width, half_height, jaw_narrowing = rng.uniform(62, 74), rng.uniform(86, 98), rng.uniform(0.12, 0.36)
    look = Appearance(  # each argument draws from rng in this order
        skin=skin,
        hair=hair,
        iris=iris,
        half_width=half_width,
        half_height=half_height,
        jaw_narrowing=jaw_narrowing,
        eye_y=CENTRE - rng.uniform(3, 11),
        eye_offset=half_width * rng.uniform(0.40, 0.46),
        eye_half_width=rng.uniform(10.5, 13.5),
        mouth_y=CENTRE + half_height * rng.uniform(0.53, 0.60),
    )

    _background(painter, look)
    face, side = _face(painter, look)
    _nose(painter, look, side)
    _eyes(painter, look)
    _fringe(painter, look)
    half, lower = look.half_width * rng.uniform(0.33, 0.40), rng.uniform(5.5, 8.5)
    painter.paint(painter.ellipse(CENTRE, look.mouth_y + lower + 6, half * 0.6, 3, 4), skin * 0.6, 0.3)
    if rng.uniform() < 0.3:
        beard = np.minimum(face, painter.ellipse(CENTRE, look.mouth_y + 6, look.half_width * 0.8, 40, 12))
        painter.paint(beard, hair * 0.6 + 20, rng.uniform(0.15, 0.4))

    picture = np.clip(painter.picture, 0, 255).astype(np.uint8)
    canvas = cv2.resize(picture, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    rouge = np.array([rng.uniform(0.45, 0.7), rng.uniform(0.42, 0.66), rng.uniform(0.8, 1.0)])
    colour = np.clip(skin * rouge * 0.95, 20, 235)
    chin = CENTRE + look.half_height
    lips = Lips((CENTRE, look.mouth_y), half, rng.uniform(3.6, 5.8), lower, colour, chin)
    top = CENTRE - 0.62 * look.half_height
    return Head(canvas, lips, (CENTRE - look.half_width, top, CENTRE + look.half_width, chin))


def _background(painter: Painter, look: Appearance) -> None:
    """Paint a spotted wall, shoulders, a neck, and for some people long hair behind it."""
    rng = painter.rng
    painter.picture[:] = rng.uniform(40, 215, 3)
    painter.picture += painter.smooth_noise(60, 22, 3)
    painter.picture += painter.smooth_noise(12, 5)
    shirt = rng.uniform(20, 220, 3)
    shoulders = painter.polygon([(10, 262), (30, 236), (86, 218), (170, 218), (226, 236), (246, 262)], 2)
    if rng.uniform() < 0.5:
        long_hair = painter.ellipse(CENTRE, CENTRE + 12, look.half_width * 1.22, look.half_height * 1.1, 3)
        painter.paint(long_hair, look.hair * 0.8 + painter.smooth_noise(5, 10))
    painter.paint(painter.polygon([(98, 180), (158, 180), (166, 236), (90, 236)], 2), look.skin * 0.72)
    painter.paint(shoulders, shirt + painter.smooth_noise(20, 8))


def _face(painter: Painter, look: Appearance) -> tuple[np.ndarray, float]:
    """Paint ears, and an oval that narrows to the chin, lit by one lamp; returns its mask and the lamp's side."""
    rng = painter.rng
    t = np.linspace(0, 2 * np.pi, 96)
    narrow = 1 - look.jaw_narrowing * np.clip(np.sin(t), 0, 1) ** 2
    oval = np.stack([CENTRE + look.half_width * np.cos(t) * narrow, CENTRE + look.half_height * np.sin(t)], 1)
    face = painter.polygon(oval, 1.5)
    y, x = np.mgrid[: painter.side, : painter.side].astype(np.float32) / 2
    u, v = (x - CENTRE) / look.half_width, (y - CENTRE) / look.half_height
    depth = np.sqrt(np.clip(1 - 0.8 * u**2 - 0.7 * v**2, 0.05, 1))
    lamp = np.array([rng.uniform(-0.6, 0.6), rng.uniform(-0.6, 0.1), 1.0])
    lamp /= np.linalg.norm(lamp)
    light = 0.48 + 0.58 * np.clip(0.9 * u * lamp[0] + 0.8 * v * lamp[1] + depth * lamp[2], 0, 1)
    for side in (-1, 1):
        painter.paint(painter.ellipse(CENTRE + side * look.half_width * 0.98, CENTRE + 2, 9, 18), look.skin * 0.75)
    painter.paint(face, look.skin * light[..., None] + painter.smooth_noise(30, 3) + painter.smooth_noise(3, 2.5))
    for side in (-1, 1):
        cheek = painter.ellipse(CENTRE + side * look.half_width * 0.52, CENTRE + 26, 17, 13, 12)
        painter.paint(cheek, look.skin * (0.7, 0.75, 1.05), 0.25)
    return face, float(np.sign(lamp[0]) or 1)


def _nose(painter: Painter, look: Appearance, side: float) -> None:
    """Paint the shaded side of the nose, its bright ridge and the nostrils."""
    rng, skin, x = painter.rng, look.skin, CENTRE
    tip = CENTRE + look.half_height * rng.uniform(0.24, 0.30)
    wide = rng.uniform(9, 13)
    top = look.eye_y + 4
    shade = [(x - side * 3, top), (x - side * 6, top + 10), (x - side * wide, tip), (x, tip + 4), (x, top)]
    painter.paint(painter.polygon(shade, 5), skin * 0.6, 0.45)
    ridge = painter.ellipse(x + side * 1.5, (look.eye_y + tip) / 2 + 4, 3, 17, 4)
    painter.paint(ridge, np.minimum(255, skin * 1.18), 0.4)
    painter.paint(painter.ellipse(x, tip + 4, wide, 3.2, 3), skin * 0.52, 0.55)
    for side in (-1, 1):
        painter.paint(painter.ellipse(x + side * wide * 0.5, tip + 2.5, 2.7, 1.7, 1.4), skin * 0.3, 0.8)


def _eyes(painter: Painter, look: Appearance) -> None:
    """Paint eyes with lashes, and brows."""
    rng, y, eye = painter.rng, look.eye_y, look.eye_half_width
    brow, thick = rng.uniform(11, 15), rng.uniform(1.6, 3.2)
    k = np.linspace(-1, 1, 25)
    upper, lower = y - 0.47 * eye * (1 - k**2), y + 0.34 * eye * (1 - k**2)
    for side in (-1, 1):
        x = CENTRE + side * look.eye_offset
        painter.paint(painter.ellipse(x, y - 1, eye * 1.35, eye * 0.85, 5), look.skin * 0.62, 0.4)
        white = painter.band(x + eye * k, upper, lower)
        painter.paint(white, (225, 228, 232))
        pupil = x + rng.uniform(-1, 1)
        painter.paint(np.minimum(white, painter.ellipse(pupil, y - 0.4, 0.44 * eye, 0.44 * eye, 1)), look.iris)
        painter.paint(np.minimum(white, painter.ellipse(pupil, y - 0.4, 0.2 * eye, 0.2 * eye, 0.8)), (12, 10, 10))
        painter.paint(painter.ellipse(pupil - 1.6, y - 2.2, 1, 1, 0.8), (250, 250, 250))
        painter.paint(painter.band(x + eye * k * 1.04, upper - 1.5, upper + 0.4), (25, 25, 32))
        arch = y - brow - 3 * (1 - (k + 0.3 * side) ** 2)
        painter.paint(painter.band(x + 1.25 * eye * k, arch - thick, arch + thick, 1.5), 0.7 * look.hair, 0.85)


def _fringe(painter: Painter, look: Appearance) -> None:
    """Paint hair over the forehead, with a parting."""
    rng = painter.rng
    line = CENTRE - look.half_height * rng.uniform(0.55, 0.72)
    t = np.linspace(np.pi, 2 * np.pi, 48)
    crown = np.stack([CENTRE + look.half_width * 1.1 * np.cos(t), CENTRE - 2 + look.half_height * 1.12 * np.sin(t)], 1)
    part = rng.uniform(-30, 30)
    k = np.linspace(1, -1, 25)
    edge = line + 26 * np.abs(k - part / 60) ** 2.5 + rng.normal(0, 1, 25)
    fringe = np.stack([CENTRE + look.half_width * 1.02 * k, edge], 1)
    painter.paint(painter.polygon(np.concatenate([crown, fringe]), 2), look.hair + painter.smooth_noise(3, 12))


def framed(photo: np.ndarray, landmarks) -> np.ndarray:
    """A photo [H, W, 3] BGR on the canvas, the middle of its mouth where `photo_head` puts it."""
    left, right, _, eye_distance = (np.asarray(landmark, np.float64) for landmark in landmarks)
    scale = PHOTO_EYE_DISTANCE / eye_distance
    matrix = np.column_stack([scale * np.eye(2), (CENTRE, 182) - scale * (left + right) / 2])
    return cv2.warpAffine(photo, matrix, (SIZE, SIZE), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REFLECT_101)


def closed_smile(canvas: np.ndarray) -> np.ndarray:
    """The astronaut's framed portrait with her lips closed over the teeth and coloured with lipstick.

    The pixels are her own: both lips move until they meet. The tiny generator knows neither teeth nor pale lips.
    """
    rows, columns = np.mgrid[:SIZE, :SIZE].astype(np.float32)
    top, upper, lower, bottom = (
        cv2.GaussianBlur(np.interp(columns[0], SMILE_COLUMNS, heights)[None], (9, 1), 2)[0]
        for heights in SMILE_OUTLINES.values()
    )  # [SIZE] each
    lips = (rows > top) & (rows < bottom) & (columns > SMILE_COLUMNS[0]) & (columns < SMILE_COLUMNS[-1])
    share = cv2.GaussianBlur(lips.astype(np.float32), (0, 0), 1)[..., None]
    coloured = canvas * (1 - share + share * np.float32(LIPSTICK))
    gap = np.clip((lower - upper) / 3, 0, 1)
    upper, lower = upper - gap, lower + gap  # a pixel more than the mesh sees of the teeth
    meeting = upper + 0.55 * (lower - upper)
    begin, end = SMILE_ROWS
    down = (meeting - upper) * _smooth((rows - begin) / (meeting - begin))
    up = (lower - meeting) * _smooth((end - rows) / (end - meeting))
    source = np.where(rows < meeting, rows - down, rows + up).astype(np.float32)
    return np.clip(cv2.remap(coloured, columns, source, cv2.INTER_CUBIC), 0, 255).astype(np.uint8)


def _smooth(share: np.ndarray) -> np.ndarray:
    """0 up to 0, 1 from 1 on, smooth between them."""
    share = np.clip(share, 0, 1)
    return share * share * (3 - 2 * share)


def photo_head(photo: np.ndarray, landmarks, seed: int | None = None) -> Head:
    """A head from a photo [H, W, 3] BGR, whose mouth is covered with the skin around it.

    landmarks: of the face (`ASTRONAUT`, `HOPPER`). A seed varies the person: mirrored or not, in other colours, with
    another shape of the face. Without a seed the photo stays unchanged.
    """
    left, right, chin, eye_distance = (np.asarray(landmark, np.float32) for landmark in landmarks)
    rng = np.random.default_rng([0 if seed is None else seed, 21])
    mouth = (left + right) / 2
    stretch = np.ones(2) if seed is None else rng.uniform(0.9, 1.12, 2)
    scale = stretch * PHOTO_EYE_DISTANCE / eye_distance
    centre = np.array([CENTRE, 182.0])
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
    canvas = _blend(canvas, cv2.GaussianBlur(hole, (0, 0), 2), cv2.GaussianBlur(canvas, (0, 0), 4))
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
    reach, above = stretch * (66, 112)  # as in a detector's boxes at this distance of the eyes
    return Head(canvas, lips, (centre[0] - reach, centre[1] - above, centre[0] + reach, bottom))


def _recoloured(canvas: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same picture with random hue, lightness and saturation."""
    hls = cv2.cvtColor(canvas, cv2.COLOR_BGR2HLS).astype(np.float32)
    hls[..., 0] = (hls[..., 0] + rng.uniform(-6, 6)) % 180
    hls[..., 1] = np.clip(hls[..., 1] * rng.uniform(0.75, 1.15) + rng.uniform(-8, 8), 0, 255)
    hls[..., 2] = np.clip(hls[..., 2] * rng.uniform(0.6, 1.25), 0, 255)
    return cv2.cvtColor(hls.astype(np.uint8), cv2.COLOR_HLS2BGR)
