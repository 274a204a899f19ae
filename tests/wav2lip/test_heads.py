"""Drawn heads: repeatable, all different, and with the mouth that was asked for."""

import numpy as np
import pytest

from notebooks.wav2lip.convert import prepare
from notebooks.wav2lip.data import clips, heads
from notebooks.wav2lip.measuring import metrics
from notebooks.wav2lip.pipeline.detection import FaceDetector
from utils import weights

SHAPES = np.float32([(0, 0, 0), (0.3, 0.5, 1), (0.6, 0, 0.4), (1, 0.2, 0.3), (0.4, -1, 0)])


@pytest.fixture(scope="module")
def people() -> dict[str, heads.Head]:
    return {
        "drawn": heads.drawn_head(clips.FIRST_HELD_OUT_SEED + 1),
        "another": heads.drawn_head(clips.FIRST_HELD_OUT_SEED + 2),
        "photo": heads.photo_head(clips.astronaut(), heads.ASTRONAUT),
        "varied photo": heads.photo_head(clips.hopper(), heads.HOPPER, 3),
    }


@pytest.mark.parametrize("name", ["drawn", "another", "photo", "varied photo"])
def test_the_face_mesh_reads_the_opening_that_was_asked_for(people, name):
    head = people[name]
    mesh = metrics.FaceMesh(weights.fetch("face_mesh"))
    opening, width = metrics.mouth(mesh([head.frame(*shape) for shape in SHAPES], np.array(head.box)))
    assert np.corrcoef(opening, SHAPES[:, 0])[0, 1] > 0.9
    assert width[-1] < width[1]  # rounded, spread


@pytest.mark.parametrize("name", ["drawn", "another", "photo", "varied photo"])
def test_the_box_is_what_a_detector_finds(people, name):
    head = people[name]
    (face, *others) = FaceDetector(prepare("face_detection"))(head.frame(0.3, 0, 0.5))
    extent = np.tile(np.subtract(head.box[2:], head.box[:2]), 2)
    assert not others
    assert (np.abs(face[:4] - head.box) / extent).max() < 0.12


def test_a_seed_is_a_person():
    first, again, other = (heads.drawn_head(seed).frame(0.5, 0, 0.5) for seed in (5, 5, 6))
    assert (first == again).all()
    assert np.abs(first.astype(int) - other).mean() > 10


def test_an_open_mouth_is_dark_inside_and_pushes_the_chin_down(people):
    head = people["drawn"]
    closed, opened = (head.frame(opening, 0, 0) for opening in (0, 1))
    x, y = np.array(head.lips.centre, int)
    assert opened[y + 4, x].sum() < 0.5 * closed[y + 4, x].sum()
    chin = int(head.lips.chin_y) + 4  # just below the chin of a closed mouth there is neck; of an open one, face
    assert np.abs(opened[chin, x].astype(int) - closed[chin, x]).max() > 5


def test_motion_moves_the_picture_and_its_points_alike(people):
    head = people["drawn"]
    still, moved = head.frame(0.5, 0, 0.5), head.frame(0.5, 0, 0.5, motion=(4, -3, 0, 1))
    assert (moved[50:200, 60:200] == still[53:203, 56:196]).all()
    assert head.transformed(head.lips.centre, (4, -3, 0, 1)) == pytest.approx(np.add(head.lips.centre, (4, -3)))


def test_pictures_come_in_any_size(people):
    assert people["drawn"].frame(0.5, 0, 0.5, size=320).shape == (320, 320, 3)


def test_plain_numbers_and_numpy_ones_draw_the_same(people):
    head = people["drawn"]
    assert (head.frame(*np.float64([0.5, 0.2, 0.3])) == head.frame(0.5, 0.2, 0.3)).all()


def test_closed_lips_hide_the_teeth_and_nothing_else_changes():
    smile = heads.framed(clips.astronaut(), heads.ASTRONAUT)
    closed = heads.closed_smile(smile)
    (face,) = FaceDetector(prepare("face_detection"))(smile)
    (before, after), _ = metrics.mouth(metrics.FaceMesh(weights.fetch("face_mesh"))([smile, closed], face[:4]))
    assert after < 0.5 * before  # the mesh sees a gap in every mouth
    begin, end = heads.SMILE_ROWS
    assert np.abs(closed[: begin - 1].astype(int) - smile[: begin - 1]).max() <= 1
    assert np.abs(closed[end + 1 :].astype(int) - smile[end + 1 :]).max() <= 1
    teeth = slice(184, 190), slice(118, 138)
    assert smile[teeth].min(-1).mean() > 150 > 130 > closed[teeth].min(-1).mean()


def test_a_framed_photo_has_its_mouth_where_a_photo_head_has():
    portrait, head = heads.framed(clips.hopper(), heads.HOPPER), heads.photo_head(clips.hopper(), heads.HOPPER)
    assert np.abs(portrait[:120].astype(int) - head.canvas[:120]).max() <= 2
