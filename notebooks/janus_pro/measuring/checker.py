"""What is on a drawing, detected by geometry alone: areas of one colour, and the shape that overlaps each best.

It uses the palette and the outlines of the drawn world, and no network: nothing but the right drawing satisfies it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFilter
from scipy import ndimage

from notebooks.janus_pro.data import THING_PX, Prompt, relations_between
from utils.drawn_world.scenes import BACKGROUNDS, COLOURS, PLACES, SHAPES, Scene, Thing, draw

MIN_AREA_PX = 60  # of an area that is a thing; the smallest true one has 150
GRID = 24  # rows and columns to which areas and shapes are resized for the comparison
MIN_OVERLAP = 0.7  # intersection over union of an area and its shape
MAX_ASPECT_RATIO = 1.4  # of an area that is a shape


class DetectedThing(NamedTuple):
    """A thing on a drawing: its colour, its shape (empty if it is none of SHAPES), the ninth that its centre is in."""

    colour: str
    shape: str
    cell: int


def things(picture: Image.Image) -> list[DetectedThing]:
    """The things on a white background, colour by colour and from top to bottom."""
    colours = colour_map(np.asarray(picture.convert("RGB"), np.float64))  # [H, W]
    detected = []
    for number, colour in enumerate(COLOURS, 1):
        areas, _ = ndimage.label(colours == number, np.ones((3, 3)))
        for area, (rows, columns) in enumerate(ndimage.find_objects(areas), 1):
            mask = areas[rows, columns] == area
            if mask.sum() >= MIN_AREA_PX:
                row = 3 * (rows.start + rows.stop) // (2 * colours.shape[0])
                column = 3 * (columns.start + columns.stop) // (2 * colours.shape[1])
                detected.append(DetectedThing(colour, shape_of(mask), 3 * row + column))
    return detected


def fulfils(picture: Image.Image, prompt: Prompt) -> bool:
    """Whether the drawing shows what was asked for, where it was asked for, and nothing else."""
    return matches(things(picture), prompt)


def matches(detected: Sequence[DetectedThing], prompt: Prompt) -> bool:
    """Whether things are those that a prompt asks for."""
    if Counter((thing.colour, thing.shape) for thing in detected) != Counter(prompt.pairs):
        return False
    if prompt.place:
        return PLACES[detected[0].cell] == prompt.place
    if prompt.relation:
        cells = {(thing.colour, thing.shape): thing.cell for thing in detected}
        return prompt.relation in relations_between(*(cells[pair] for pair in prompt.pairs))
    return True


def colour_map(pixels: np.ndarray) -> np.ndarray:
    """The colours [H, W] of pixels [H, W, 3] in 0..255 on white: 0 for none, else the number in COLOURS, from 1.

    Edges are mixtures of a colour and white. So a pixel has the colour whose line to white is nearest to it, if it is
    more than half way along that line.
    """
    white = np.float64(BACKGROUNDS[0])
    lines = np.float64(list(COLOURS.values())) - white  # [colours, 3]
    offsets = pixels[..., None, :] - white  # [H, W, 1, 3]
    share = (offsets * lines).sum(-1) / (lines**2).sum(-1)  # [H, W, colours], of the way from white to each colour
    distance = ((offsets - share.clip(0, 1)[..., None] * lines) ** 2).sum(-1)  # [H, W, colours]
    nearest = distance.argmin(-1)  # [H, W]
    return np.where(np.take_along_axis(share, nearest[..., None], -1)[..., 0] > 0.5, nearest + 1, 0)


def shape_of(mask: np.ndarray) -> str:
    """The shape of SHAPES that overlaps an area best, cut out along its borders; empty if none overlaps enough."""
    height, width = mask.shape
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        return ""
    area = resize_mask(mask)
    shares = {shape: max(overlap(area, outline) for outline in known) for shape, known in outlines().items()}
    best = max(shares, key=shares.get)
    return best if shares[best] >= MIN_OVERLAP else ""


@cache
def outlines() -> dict[str, list[np.ndarray]]:
    """The shapes at GRID x GRID: sharp, and blurred by a pixel, as an autoencoder draws their tips."""
    masks: dict[str, list[np.ndarray]] = {}
    scale = 4  # times the size at which things are drawn
    for shape in SHAPES:
        thing = Thing(shape, "black", 64, 64, scale * THING_PX, 4)
        sharp = draw(Scene(128, 128, BACKGROUNDS[0], (thing,))).convert("L")
        for picture in (sharp, sharp.filter(ImageFilter.GaussianBlur(scale))):
            mask = np.asarray(picture) < 140
            (box,) = ndimage.find_objects(mask.astype(int))
            masks.setdefault(shape, []).append(resize_mask(mask[box]))
    return masks


def overlap(area: np.ndarray, outline: np.ndarray) -> float:
    """Intersection over union of two areas."""
    return (area & outline).sum() / (area | outline).sum()


def resize_mask(mask: np.ndarray) -> np.ndarray:
    """An area [H, W] resized to [GRID, GRID]."""
    picture = Image.fromarray(mask.astype(np.uint8) * 255)
    return np.asarray(picture.resize((GRID, GRID), Image.Resampling.BILINEAR)) > 127
