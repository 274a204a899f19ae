"""Why blank areas of a drawing have faint colours: what the decoder of pictures makes of tokens of the background.

A picture is decoded twice: as it is, and with the means and variances that the decoder's group normalization has for an
empty picture. Only the cause is measured here; the pipeline decodes as the authors do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor, nn

from notebooks.janus_pro.network.reference import Reference
from utils.tables import Table, number

AS_IS, EMPTY_STATISTICS, EMPTY = "as it is", "with the statistics of an empty picture", "an empty picture"


def background_token(reference: Reference) -> int:
    """The token of a blank area. Raises ValueError for an autoencoder that encodes a white picture as several."""
    side = reference.model.config.vision_config.image_size
    found = np.unique(reference.encode([Image.new("RGB", (side, side), "white")]))
    if len(found) > 1:
        raise ValueError(f"A white picture has {len(found)} different tokens: there is no token of the background.")
    return int(found[0])


@torch.inference_mode()
def decode(reference: Reference, tokens: np.ndarray, statistics_of: np.ndarray | None = None) -> np.ndarray:
    """[n, S, S, 3] in about 0..255: the pictures of tokens [n, t].

    statistics_of: tokens [1, t] of the picture whose means and variances every group normalization uses.
    """
    vq = reference.model.model.vqmodel
    layers = [layer for layer in vq.decoder.modules() if isinstance(layer, nn.GroupNorm)]
    statistics: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def record(layer: nn.GroupNorm, inputs: tuple, _: Tensor) -> None:
        groups = inputs[0].reshape(1, layer.num_groups, -1)  # [1, groups, values]
        statistics[layer] = groups.mean(-1, True), groups.var(-1, correction=0, keepdim=True)

    def normalise(layer: nn.GroupNorm, inputs: tuple, _: Tensor) -> Tensor:
        mean, variance = statistics[layer]
        groups = inputs[0].reshape(len(inputs[0]), layer.num_groups, -1)  # [n, groups, values]
        scaled = ((groups - mean) / (variance + layer.eps).sqrt()).reshape(inputs[0].shape)  # [n, C, H, W]
        return scaled * layer.weight[:, None, None] + layer.bias[:, None, None]

    def decoded(tokens: np.ndarray, hook=None) -> Tensor:
        handles = [layer.register_forward_hook(hook) for layer in layers if hook]
        try:
            return vq.decode(torch.from_numpy(tokens))  # [n, 3, S, S] in about -1..1
        finally:
            for handle in handles:
                handle.remove()

    if statistics_of is not None:
        decoded(statistics_of, record)
    pixels = decoded(tokens, normalise if statistics_of is not None else None)
    return ((pixels + 1) / 2 * 255).permute(0, 2, 3, 1).numpy()


def decodings(reference: Reference, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """[n, S, S, 3]: pictures of tokens [n, t], decoded as they are, and with the statistics of an empty picture; and
    that empty picture [1, S, S, 3]."""
    empty = np.full_like(tokens[:1], background_token(reference))
    return {
        AS_IS: decode(reference, tokens),
        EMPTY_STATISTICS: decode(reference, tokens, empty),
        EMPTY: decode(reference, empty),
    }


def distances_from_white(pixels: np.ndarray, tokens: np.ndarray, background: int) -> np.ndarray:
    """[k]: the largest difference from white among the three colours, of all pixels [n, S, S, 3] of blank areas.

    A blank area has the token of the background, and so have its neighbours: at the edge of a thing a decoder blurs.
    """
    rows = int(tokens.shape[1] ** 0.5)
    blank = (tokens == background).reshape(-1, rows, rows)
    far = ndimage.binary_erosion(blank, np.ones((1, 3, 3)), border_value=True)  # [n, rows, rows]
    patch = pixels.shape[1] // rows
    return np.abs(255 - pixels).max(-1)[far.repeat(patch, 1).repeat(patch, 2)]


def table(reference: Reference, tokens: np.ndarray) -> Table:
    """How far blank areas of pictures are from white, by how the pictures are decoded."""
    background = background_token(reference)
    lines = []
    for name, pixels in decodings(reference, tokens).items():
        own = tokens if len(pixels) == len(tokens) else np.full_like(tokens[:1], background)
        off = distances_from_white(pixels, own, background)
        lines.append([name, *(number(x) for x in (off.mean(), np.quantile(off, 0.99), off.max()))])
    return Table(["Blank areas, distance from white (of 255)", "mean", "99 of 100 pixels are below", "largest"], lines)


def tokens_of_blank_areas(reference: Reference, pictures: Sequence[Image.Image], tokens: np.ndarray) -> np.ndarray:
    """The tokens [k], of tokens [n, t], where the pictures are white."""
    pixels = np.stack([np.asarray(picture) for picture in pictures])  # [n, S, S, 3]
    rows = reference.rows
    patches = pixels.reshape(len(pixels), rows, pixels.shape[1] // rows, rows, -1, 3)  # [n, row, y, column, x, 3]
    return tokens[(patches == 255).all((2, 4, 5)).reshape(tokens.shape)]
