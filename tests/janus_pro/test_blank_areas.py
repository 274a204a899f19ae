"""Blank areas of the pictures that `tiny` decodes are white."""

import numpy as np
from scipy import ndimage

from notebooks.janus_pro import convert
from notebooks.janus_pro.data import held_out_prompts
from notebooks.janus_pro.network.reference import Reference
from utils import weights

FAR_PX = 24  # from the nearest thing: at its edge a decoder blurs


def test_blank_areas_are_white():
    tiny = Reference(weights.resolve(convert.MODELS["tiny"]["checkpoint"]))
    pictures = [picture for picture, _ in held_out_prompts("several", 6)]
    true = np.stack([np.asarray(picture) for picture in pictures])  # [n, S, S, 3]
    square = np.ones((1, 2 * FAR_PX + 1, 2 * FAR_PX + 1))
    blank = ndimage.binary_erosion((true == 255).all(-1), square, border_value=True)  # [n, S, S]
    decoded = np.stack([np.asarray(picture) for picture in tiny.decode(tiny.encode(pictures))])
    darkness = 255.0 - decoded.min(-1)  # [n, S, S], of the darkest colour
    assert blank.mean() > 0.1 and darkness[blank].mean() < 0.05
    assert darkness[~blank].mean() > 10  # things are not
