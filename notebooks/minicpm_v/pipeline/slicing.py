"""From a picture to the inputs of MiniCPM-V's vision tower: slices, patches in a row, positions, placeholder text.

A picture larger than the tower's resolution is read twice: as a whole, resized (the overview), and cut into slices
that keep its details. Guo et al., "LLaVA-UHD: an LMM Perceiving any Aspect Ratio and High-Resolution Images", ECCV
2024; Yao et al., "MiniCPM-V: A GPT-4V Level MLLM on Your Phone", 2024. This file needs numpy and Pillow only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

Size = tuple[int, int]


@dataclass(frozen=True)
class Plan:
    """How a picture is read; sizes are (width, height) in pixels, multiples of the patch's side."""

    overview: Size
    grid: Size  # slices per row, rows; (0, 0) when the overview is all
    slice: Size  # of every slice; (0, 0) when there are none


def plan(size: Size, max_slices: int = 9, resolution: int = 448, patch: int = 14) -> Plan:
    """The plan for a picture of `size` (width, height) in pixels.

    resolution: overview and slices have about the area of a square with this side. max_slices: at most so many slices
    (0 and 1: none). Raises ValueError when a side is smaller than 1 pixel.
    """
    width, height = size
    if min(size) < 1:
        raise ValueError(f"A picture of {width} x {height} pixels cannot be sliced: give one of 1 x 1 or more.")
    overview = _fit(width, height, resolution, patch)
    count = min(math.ceil(width * height / resolution**2), max_slices)
    if count <= 1:
        return Plan(overview, (0, 0), (0, 0))
    counts = [n for n in (count - 1, count, count + 1) if 1 < n <= max_slices]
    grids = [(columns, n // columns) for n in counts for columns in range(1, n + 1) if n % columns == 0]
    columns, rows = min(grids, key=lambda grid: abs(math.log(width / height) - math.log(grid[0] / grid[1])))
    cell = _multiple(width, columns) / columns, _multiple(height, rows) / rows
    return Plan(overview, (columns, rows), _fit(*cell, resolution, patch))


def _fit(width: float, height: float, resolution: int, patch: int) -> Size:
    """(width, height), multiples of `patch`, of this aspect ratio and about resolution^2 pixels."""
    ratio = width / height
    height = int(resolution / math.sqrt(ratio))
    return _multiple(int(height * ratio), patch), _multiple(height, patch)


def _multiple(length: float, of: int) -> int:
    """The nearest multiple, at least one. Halves are rounded to the even one, as in the training of the checkpoints."""
    return max(round(length / of) * of, of)


def cut(image: Image.Image, plan: Plan, resample: int = Image.Resampling.BICUBIC) -> list[Image.Image]:
    """The overview and then the slices, row by row."""
    pieces = [image.resize(plan.overview, resample)]
    (columns, rows), (width, height) = plan.grid, plan.slice
    if columns:
        large = image.resize((columns * width, rows * height), resample)
        corners = [(column * width, row * height) for row in range(rows) for column in range(columns)]
        pieces += [large.crop((x, y, x + width, y + height)) for x, y in corners]
    return pieces


def patchify(pixels: np.ndarray, patch: int = 14) -> np.ndarray:
    """[3, H, W] to [3, patch, L * patch]: the L patches next to each other, row by row of the picture."""
    channels, height, width = pixels.shape
    patches = pixels.reshape(
        channels, height // patch, patch, width // patch, patch
    )  # [3, rows, patch, columns, patch]
    return patches.transpose(0, 2, 1, 3, 4).reshape(channels, patch, -1)


@dataclass(frozen=True)
class Batch:
    """A batch of N overviews and slices, padded with zeros to L patches, the number of the largest."""

    pixel_values: np.ndarray  # [N, 3, patch, L * patch] float32, -1..1
    patch_attention_mask: np.ndarray  # [N, L] bool, True where there is a patch
    position_ids: np.ndarray  # [N, L] int64, rows of the tower's position table; 0 where padded
    sizes: np.ndarray  # [N, 2] int64, patches: rows, columns


def batch(pieces: list[Image.Image], side: int = 70, patch: int = 14) -> Batch:
    """The inputs of 2.6's tower for RGB pieces whose sides are multiples of `patch`.

    side: of the tower's square table of positions, its image_size / patch.
    """
    sizes = np.array([(piece.height // patch, piece.width // patch) for piece in pieces], np.int64).reshape(-1, 2)
    lengths = sizes.prod(1)
    longest = int(lengths.max(initial=0))
    pixel_values = np.zeros((len(pieces), 3, patch, longest * patch), np.float32)
    ids = np.zeros((len(pieces), longest), np.int64)
    for row, piece in enumerate(pieces):
        pixel_values[row, :, :, : lengths[row] * patch] = patchify(normalise(piece), patch)
        ids[row, : lengths[row]] = position_ids(*sizes[row].tolist(), side)
    return Batch(pixel_values, np.arange(longest) < lengths[:, None], ids, sizes)


def normalise(image: Image.Image) -> np.ndarray:
    """[3, H, W] float32 in -1..1 of an RGB picture."""
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1


def position_ids(rows: int, columns: int, side: int = 70) -> np.ndarray:
    """[rows * columns] int64: the entry in a table of side x side for every patch of a picture, row by row."""
    table = _steps(1 / side, 1 / side, side - 1)

    def places(count: int) -> np.ndarray:
        return np.searchsorted(table, _steps(0, 1 / count, count), side="right")

    return (places(rows)[:, None] * side + places(columns)).reshape(-1)


def _steps(start: float, step: float, count: int) -> np.ndarray:
    """[count] float32: start + i * step as `torch.arange` rounds it.

    This rounding decides on the position of patches at the border of two entries of the table, so it is part of the
    checkpoints. PyTorch adds to every eighth value, which is rounded; the last ones are computed from the start.
    """
    i = np.arange(count)
    begin = np.where(i < count // 16 * 16, i // 8 * 8, i)
    return ((start + step * begin).astype(np.float32) + (i - begin) * step).astype(np.float32)


def sincos_positions(rows: int, columns: int, width: int) -> np.ndarray:
    """[rows, columns, width] float32: sines and cosines of the column in the first half, of the row in the second."""
    frequencies = 10000 ** -(np.arange(width // 4) / (width // 4))

    def waves(count: int) -> np.ndarray:
        angles = np.arange(count)[:, None] * frequencies
        return np.concatenate([np.sin(angles), np.cos(angles)], 1)

    shape = rows, columns, width // 2
    halves = np.broadcast_to(waves(columns), shape), np.broadcast_to(waves(rows)[:, None], shape)
    return np.concatenate(halves, -1).astype(np.float32)


def resized_positions(table: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """[rows, columns, C] float32: a table of positions [S, S, C] resized to another grid, for 2.0's tower.

    It is bicubic interpolation (a = -0.5) with antialiasing, as in Pillow and PyTorch.
    """
    down, across = (_bicubic(side, count) for side, count in zip(table.shape, (rows, columns), strict=False))
    return np.einsum("ri,ijd,cj->rcd", down, table, across, optimize=True).astype(np.float32)


def _bicubic(size: int, count: int) -> np.ndarray:
    """[count, size]: the weight of every old value in every new one."""
    ratio = size / count
    centres = (np.arange(count) + 0.5) * ratio
    x = np.abs(np.arange(size) + 0.5 - centres[:, None]) / max(ratio, 1)
    near, far = (1.5 * x - 2.5) * x**2 + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0))
    return weights / weights.sum(1, keepdims=True)


def placeholder(grid: Size, queries: int, version: float = 2.6, index: int = 0) -> str:
    """The text that stands for a picture: one <unk> for every embedding of the overview and then of the slices.

    grid: of the plan. queries: embeddings per piece. index: which picture of the conversation it is, from 0 (2.6).
    """
    number = f"<image_id>{index}</image_id>" if version >= 2.6 else ""
    return number + f"<image>{'<unk>' * queries}</image>" + slices_placeholder(grid, queries, version)


def slices_placeholder(grid: Size, queries: int, version: float = 2.6) -> str:
    """The part of `placeholder` for the slices: rows of the grid are lines."""
    columns, rows = grid
    unknown = "<unk>" * queries
    if version >= 2.6:
        return "\n".join([f"<slice>{unknown}</slice>" * columns] * rows)
    lines = "\n".join([f"<image>{unknown}</image>" * columns] * rows)
    return f"<slice>{lines}</slice>" if lines else ""
