"""What is on a drawing, found by geometry alone: areas of one colour, and the shape that covers each best.

It knows the palette and the outlines of the drawn world, and no network: whoever draws cannot please it otherwise than
by drawing what was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFilter
from scipy import ndimage

from notebooks.janus_pro.data import TALL, Wish, lies
from utils.drawn_world.scenes import BACKGROUNDS, COLOURS, PLACES, SHAPES, Scene, Thing, draw

SMALLEST = 60  # pixels of an area that is a thing; the least of true ones has 150
GRID = 24  # rows and columns that an area and the shapes are compared at
COVERED = 0.7  # share of their union that an area and its shape have in common, at least
LONGEST = 1.4  # times the other side of an area that is a shape


class Found(NamedTuple):
    """A thing on a drawing: its colour, its shape (empty if it is like none), and the ninth that its middle is in."""

    colour: str
    shape: str
    cell: int


def things(picture: Image.Image) -> list[Found]:
    """The things on white paper, colour by colour and from top to bottom."""
    painted, found = coloured(np.asarray(picture.convert("RGB"), np.float64)), []
    for number, colour in enumerate(COLOURS, 1):
        areas, _ = ndimage.label(painted == number, np.ones((3, 3)))
        for area, (rows, columns) in enumerate(ndimage.find_objects(areas), 1):
            mask = areas[rows, columns] == area
            if mask.sum() >= SMALLEST:
                row = 3 * (rows.start + rows.stop) // (2 * painted.shape[0])
                column = 3 * (columns.start + columns.stop) // (2 * painted.shape[1])
                found.append(Found(colour, shape_of(mask), 3 * row + column))
    return found


def fulfils(picture: Image.Image, wish: Wish) -> bool:
    """Whether the drawing shows what was asked for, where it was asked for, and nothing else."""
    return told(things(picture), wish)


def told(found: Sequence[Found], wish: Wish) -> bool:
    """Whether things are those of a wish."""
    if Counter((thing.colour, thing.shape) for thing in found) != Counter(wish.pairs):
        return False
    if wish.place:
        return PLACES[found[0].cell] == wish.place
    if wish.beside:
        cells = {(thing.colour, thing.shape): thing.cell for thing in found}
        return wish.beside in lies(*(cells[pair] for pair in wish.pairs))
    return True


def coloured(pixels: np.ndarray) -> np.ndarray:
    """The colour that pixels [H, W, 3] in 0..255 have on white [H, W]: 0 for none, else its number in COLOURS, from 1.

    Edges are mixed with the paper: a pixel is of the colour whose line to white it is nearest to, if it is half way.
    """
    paper = np.float64(BACKGROUNDS[0])
    ways = np.float64(list(COLOURS.values())) - paper
    ink = pixels[..., None, :] - paper
    share = (ink * ways).sum(-1) / (ways**2).sum(-1)
    apart = ((ink - share.clip(0, 1)[..., None] * ways) ** 2).sum(-1)
    nearest = apart.argmin(-1)
    return np.where(np.take_along_axis(share, nearest[..., None], -1)[..., 0] > 0.5, nearest + 1, 0)


def shape_of(mask: np.ndarray) -> str:
    """The shape of SHAPES that an area, cut out along its borders, is most like; empty if it is like none."""
    height, width = mask.shape
    if max(height, width) > LONGEST * min(height, width):
        return ""
    area = resized(mask)
    shares = {shape: max(overlap(area, outline) for outline in known) for shape, known in outlines().items()}
    best = max(shares, key=shares.get)
    return best if shares[best] >= COVERED else ""


@cache
def outlines() -> dict[str, list[np.ndarray]]:
    """The shapes at GRID x GRID, sharp and as they are when tips have melted by a pixel, as an autoencoder's do."""
    found: dict[str, list[np.ndarray]] = {}
    scale = 4  # times the size at which things are drawn
    for shape in SHAPES:
        thing = Thing(shape, "black", 64, 64, scale * TALL, 4)
        sharp = draw(Scene(128, 128, BACKGROUNDS[0], (thing,))).convert("L")
        for picture in (sharp, sharp.filter(ImageFilter.GaussianBlur(scale))):
            mask = np.asarray(picture) < 140
            (box,) = ndimage.find_objects(mask.astype(int))
            found.setdefault(shape, []).append(resized(mask[box]))
    return found


def overlap(area: np.ndarray, outline: np.ndarray) -> float:
    """The share of their union that two areas have in common."""
    return (area & outline).sum() / (area | outline).sum()


def resized(mask: np.ndarray) -> np.ndarray:
    """An area [H, W] at [GRID, GRID]."""
    picture = Image.fromarray(mask.astype(np.uint8) * 255)
    return np.asarray(picture.resize((GRID, GRID), Image.Resampling.BILINEAR)) > 127
