"""Slices, positions and placeholder text: against the authors' program, and against what they are meant to be."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from notebooks.minicpm_v.pipeline import slicing
from notebooks.minicpm_v.pipeline.slicing import Plan
from tests.references import files, sections

FILES = files("minicpm_v")


def matching(pattern: str):
    """Runs a test once for every stored array whose key matches: with its file, itself and the numbers in its key."""
    found = [(path, key, re.fullmatch(pattern, key)) for path in FILES for key in np.load(path)]
    cases = [
        pytest.param(path, np.load(path)[key], *map(int, match.groups()), id=f"{path.parent.name}-{path.stem}-{key}")
        for path, key, match in found
        if match
    ]
    return pytest.mark.parametrize(["path", "stored", "a", "b", "c"][: 2 + re.compile(pattern).groups], cases)


def width(path: Path, version: str) -> int:
    """Of the resampler that an oracle was made with; every so many values of its positions are stored."""
    return sections(path)[f"resampler_{version}"]["keys"]["query"]["shape"][1]


def test_there_is_reference_data():
    assert FILES


@matching("slice/plan_w_h_srcw_srch_gridx_gridy_patchw_patchh")
def test_plans(path, stored):
    assert len(stored)
    for size, expected in zip(stored[:, :2].tolist(), stored[:, 2:].tolist(), strict=True):
        plan = slicing.plan(size)
        assert [*plan.overview, *plan.grid, *plan.slice] == expected, size


@matching(r"vpm_2_6/position_ids_(\d+)x(\d+)")
def test_position_ids(path, stored, a, b):
    assert (slicing.position_ids(a, b) == stored).all()


@matching(r"slice/placeholder_2_0_grid(\d+)x(\d+)_q(\d+)")
def test_placeholder_of_2_0(path, stored, a, b, c):
    assert slicing.slices_placeholder((a, b), c, 2.0) == str(stored)


@matching(r"slice/placeholder_2_6_grid(\d+)x(\d+)_q(\d+)")
def test_placeholder_of_2_6(path, stored, a, b, c):
    assert slicing.slices_placeholder((a, b), c, 2.6) == str(stored)


@matching("slice/reshape_by_patch_in")
def test_patches_in_a_row(path, stored):
    assert (slicing.patchify(stored) == np.load(path)["slice/reshape_by_patch_out"]).all()


@matching(r"resampler_2_6/pos_(\d+)x(\d+)")
def test_positions_of_2_6(path, stored, a, b):
    ours = slicing.sincos_positions(a, b, width(path, "2_6"))
    assert np.abs(ours[..., :: ours.shape[-1] // stored.shape[-1]] - stored).max() <= 2e-6


@matching(r"resampler_2_0/kvpos_(\d+)x(\d+)")
def test_positions_of_2_0(path, stored, a, b):
    ours = slicing.sincos_positions(a, b, width(path, "2_0")).reshape(a * b, -1)
    assert np.abs(ours[:, :: ours.shape[-1] // stored.shape[-1]] - stored).max() <= 2e-6


@matching(r"resampler_2_0/pos_embed_(\d+)x(\d+)_rows0_(\d+)")
def test_positions_of_the_queries(path, stored, a, b, c):
    ours = slicing.sincos_positions(a, b, width(path, "2_0")).reshape(a * b, -1)[:c]
    assert np.abs(ours[:, :: ours.shape[-1] // stored.shape[-1]] - stored).max() <= 2e-6


@pytest.mark.parametrize("side", [70, 32, 24])
def test_position_ids_are_those_of_torch_for_every_size(side):
    table = torch.arange(1 / side, 1.0, 1 / side)
    for count in range(1, 160):
        expected = torch.bucketize(torch.arange(0, 1 - 1e-6, 1 / count), table, right=True).numpy()
        assert (slicing.position_ids(1, count, side) == expected).all(), count
        assert (slicing.position_ids(count, 1, side) == side * expected).all(), count


def test_another_resolution_and_number_of_slices():
    assert slicing.plan((112, 112), resolution=112) == Plan((112, 112), (0, 0), (0, 0))
    assert slicing.plan((336, 336), resolution=112) == Plan((112, 112), (3, 3), (112, 112))
    assert slicing.plan((2000, 1000), max_slices=2) == Plan((630, 322), (2, 1), (448, 448))
    for most in (0, 1):
        assert slicing.plan((2000, 1000), max_slices=most).grid == (0, 0)


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1), (13, 13), (20000, 20000), (3001, 17)])
def test_every_picture_has_whole_patches_and_few_slices(size):
    for resolution in (112, 448):
        plan = slicing.plan(size, resolution=resolution)
        assert plan.grid[0] * plan.grid[1] <= 9
        assert all(side % 14 == 0 for side in plan.overview + plan.slice) and min(plan.overview) > 0
        assert (plan.slice == (0, 0)) == (plan.grid == (0, 0))


@pytest.mark.parametrize("size", [(0, 5), (5, -1)])
def test_a_picture_without_pixels_is_refused(size):
    with pytest.raises(ValueError, match=r"cannot be sliced: give one of 1 x 1 or more"):
        slicing.plan(size)


def chequered(plan: Plan) -> Image.Image:
    """A picture whose slices are of one colour each: red counts the columns, green the rows."""
    (columns, rows), (width, height) = plan.grid, plan.slice
    colours = np.zeros((rows, columns, 3), np.uint8)
    colours[..., 0], colours[..., 1] = 20 * np.arange(columns), 20 * np.arange(rows)[:, None]
    return Image.fromarray(colours.repeat(height, 0).repeat(width, 1))


def test_slices_come_row_by_row():
    plan = Plan((56, 28), (3, 2), (42, 28))
    pieces = slicing.cut(chequered(plan), plan)
    assert [piece.size for piece in pieces] == [(56, 28)] + 6 * [(42, 28)]
    centres = [piece.getpixel((20, 14)) for piece in pieces[1:]]
    assert centres == [(20 * column, 20 * row, 0) for row in range(2) for column in range(3)]


def test_pieces_are_resized_by_cubics_or_as_asked():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 130, 3), np.uint8))
    plan = slicing.plan(image.size, resolution=56)
    columns, rows = plan.grid
    large = plan.slice[0] * columns, plan.slice[1] * rows
    for resample in (Image.Resampling.BICUBIC, Image.Resampling.NEAREST):
        pieces = slicing.cut(image, plan, resample)
        assert pieces[0].tobytes() == image.resize(plan.overview, resample).tobytes()
        assert pieces[1].tobytes() == image.resize(large, resample).crop((0, 0, *plan.slice)).tobytes()
    assert slicing.cut(image, plan)[0].tobytes() == image.resize(plan.overview, Image.Resampling.BICUBIC).tobytes()


def test_a_batch_is_padded_and_says_where():
    rng = np.random.default_rng(0)
    pieces = [Image.fromarray(rng.integers(0, 256, (*shape, 3), np.uint8)) for shape in ((28, 42), (56, 28))]
    batch = slicing.batch(pieces, side=8)
    assert batch.sizes.tolist() == [[2, 3], [4, 2]] and batch.sizes.dtype == batch.position_ids.dtype == np.int64
    assert batch.pixel_values.shape == (2, 3, 14, 8 * 14) and batch.pixel_values.dtype == np.float32
    assert batch.patch_attention_mask.tolist() == [6 * [True] + 2 * [False], 8 * [True]]
    assert not batch.pixel_values[0, :, :, 6 * 14 :].any() and not batch.position_ids[0, 6:].any()
    for row, piece in enumerate(pieces):
        patches = batch.sizes[row].prod()
        pixels = (np.asarray(piece) / 255 - 0.5) / 0.5
        down, right = divmod(int(patches) - 1, int(batch.sizes[row, 1]))
        last = pixels[14 * down : 14 * down + 14, 14 * right : 14 * right + 14].transpose(2, 0, 1)
        assert np.abs(batch.pixel_values[row, :, :, 14 * (patches - 1) : 14 * patches] - last).max() < 1e-6
        assert (batch.position_ids[row, :patches] == slicing.position_ids(*batch.sizes[row], 8)).all()


@pytest.mark.parametrize("grid", [(5, 7), (32, 32), (27, 27), (40, 20), (1, 60)])
def test_resized_positions_are_those_of_torch(grid):
    table = np.random.default_rng(0).standard_normal((27, 27, 6)).astype(np.float32)
    image = torch.from_numpy(table).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(image, grid, mode="bicubic", antialias=True)[0].permute(1, 2, 0)
    ours = slicing.resized_positions(table, *grid)
    assert ours.dtype == np.float32 and np.abs(ours - resized.numpy()).max() < 2e-5


@pytest.mark.parametrize("version", [2.0, 2.6])
def test_a_placeholder_has_one_unknown_for_every_embedding(version):
    for plan in (slicing.plan((100, 100)), slicing.plan((800, 600)), slicing.plan((3000, 500))):
        text = slicing.placeholder(plan.grid, 64, version)
        assert text.count("<unk>") == 64 * (1 + plan.grid[0] * plan.grid[1])
        assert text.count("\n") == max(plan.grid[1] - 1, 0)


def test_placeholders_whole():
    assert slicing.placeholder((0, 0), 2, 2.0) == "<image><unk><unk></image>"
    assert slicing.placeholder((0, 0), 1, 2.6, 3) == "<image_id>3</image_id><image><unk></image>"
    assert slicing.placeholder((1, 2), 1, 2.6) == (
        "<image_id>0</image_id><image><unk></image><slice><unk></slice>\n<slice><unk></slice>"
    )
    assert slicing.placeholder((2, 1), 1, 2.0) == (
        "<image><unk></image><slice><image><unk></image><image><unk></image></slice>"
    )
