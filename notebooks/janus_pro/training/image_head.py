"""The last matrix of the image head during training: a sum of vectors of what each code shows.

With a row of its own for each code, the language model learns the codes of a purple circle only from sentences that
name both words. Here such a code has a vector of "purple" and a vector of the circle's corner, which other things
share. The saved checkpoint has the product, an ordinary matrix.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from transformers import JanusForConditionalGeneration

from notebooks.janus_pro import data
from notebooks.janus_pro.network import encode_pictures
from notebooks.janus_pro.training import settings
from notebooks.janus_pro.training.batches import to_pixels
from notebooks.janus_pro.training.settings import ROWS, TOKENS
from utils.drawn_world.scenes import COLOURS, SHAPES, Scene, draw

SCENES = 1000  # in which codes are counted
BATCH = 50
CORNERS = 4  # of a thing: it fills two tokens of two rows
ASPECTS = (1 + len(COLOURS), 1 + CORNERS * len(SHAPES))  # of a token: 0 is the background


class SumOfAspects(nn.Module):
    """A matrix [codes, D] made of vectors [aspects, D]; shown: [codes, aspects], how often a code shows an aspect."""

    def __init__(self, shown: Tensor):
        super().__init__()
        self.register_buffer("shown", shown)

    def forward(self, vectors: Tensor) -> Tensor:
        """The matrix of `vectors`."""
        return self.shown @ vectors

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """The vectors whose matrix is nearest to `matrix`."""
        return torch.linalg.pinv(self.shown) @ matrix


class ProductsOfAspects(nn.Module):
    """Adds to a matrix [codes, D] the product of a vector of the colour and one of the corner that a code shows.

    A sum cannot say "a red square or a purple cross": it would make a red cross as probable. shown: as above.
    """

    def __init__(self, shown: Tensor):
        super().__init__()
        self.register_buffer("shown", shown)
        width = settings.WIDTH
        self.colours = nn.Parameter(torch.randn(ASPECTS[0], width) * width**-0.5)
        self.corners = nn.Parameter(torch.zeros(ASPECTS[1], width))  # nothing changes at first

    def forward(self, matrix: Tensor) -> Tensor:
        """The matrix with the products added."""
        colours, corners, _ = self.shown.split([*ASPECTS, 1], -1)
        return matrix + (colours @ self.colours) * (corners @ self.corners)


def aspects(scene: Scene) -> Tensor:
    """The colour of each token of a drawable scene, and the corner of a shape that it shows: [T, 2], 0 for neither."""
    shown = np.zeros((ROWS, ROWS, 2), np.int64)
    for thing in scene.things:
        row, column = (2 * at for at in divmod(thing.cell, 3))
        shown[row : row + 2, column : column + 2, 0] = 1 + list(COLOURS).index(thing.colour)
        corners = 1 + CORNERS * SHAPES.index(thing.shape) + np.arange(CORNERS)
        shown[row : row + 2, column : column + 2, 1] = corners.reshape(2, 2)
    return torch.from_numpy(shown.reshape(TOKENS, 2))


@torch.no_grad()
def aspects_of_codes(model: JanusForConditionalGeneration) -> Tensor:
    """How often each code shows each aspect, [codes, aspects], in scenes of all pairs; the last aspect: never used."""
    rng = np.random.default_rng([0, 0, 9])  # training's seeds are of two numbers
    counts = torch.zeros(model.config.vq_config.num_embeddings, sum(ASPECTS))
    for _ in range(SCENES // BATCH):
        scenes = [data.any_drawable_scene(rng) for _ in range(BATCH)]
        tokens = encode_pictures(model, to_pixels([draw(scene) for scene in scenes])).flatten()  # [n * T]
        shown = torch.cat([aspects(scene) for scene in scenes])  # [n * T, 2]
        rows = [F.one_hot(values, number) for values, number in zip(shown.unbind(-1), ASPECTS, strict=True)]
        counts.index_add_(0, tokens, torch.cat(rows, -1).float())
    unused = (counts.sum(-1, keepdim=True) == 0).float()  # [codes, 1]
    uses = (counts.sum(-1, keepdim=True) / len(ASPECTS)).clamp(min=1)
    return torch.cat([counts / uses, unused], -1)


def split_head(model: JanusForConditionalGeneration) -> None:
    """Train the last matrix of the image head as `SumOfAspects` from now on, without a bias: it would learn that codes
    of held-out pairs are rare."""
    layer = model.model.generation_head.vision_head
    parametrize.register_parametrization(layer, "weight", SumOfAspects(aspects_of_codes(model)))
    nn.init.zeros_(layer.bias).requires_grad_(False)


def add_products(model: JanusForConditionalGeneration) -> None:
    """Train `ProductsOfAspects` as well from now on, after `split_head`."""
    layer = model.model.generation_head.vision_head
    shown = layer.parametrizations.weight[0].shown
    parametrize.register_parametrization(layer, "weight", ProductsOfAspects(shown))


def join_head(model: JanusForConditionalGeneration) -> None:
    """Make the last matrix of the image head an ordinary one again."""
    parametrize.remove_parametrizations(model.model.generation_head.vision_head, "weight")
