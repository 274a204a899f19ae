"""The lower half of a drawn face is pasted unseen: eyes stay sharp, no seam shows, the mouth is the new one."""

from fractions import Fraction

import cv2
import numpy as np
import pytest

from notebooks.wav2lip.convert import prepare
from notebooks.wav2lip.measuring import metrics
from notebooks.wav2lip.measuring.quality import openvino_generator
from notebooks.wav2lip.pipeline import (
    PADS,
    PASTES,
    LipSync,
    cut,
    generator_face,
    lip_sync,
    melspectrogram,
    padded,
    paste_lower_half,
    paste_rectangle,
)
from notebooks.wav2lip.pipeline.detection import FaceDetector
from notebooks.wav2lip.pipeline.media import read_frames, read_sound
from tests.wav2lip.files import sound, tone
from utils import weights
from utils.paths import ROOT

SAMPLES = ROOT / "notebooks" / "wav2lip" / "samples"
EYE_CORNERS = (33, 133), (263, 362)  # of the face mesh: outer and inner
MOUTH_CORNERS = [61, 291]  # of the face mesh


@pytest.fixture(scope="module")
def photos() -> dict[str, np.ndarray]:
    """Real faces: a portrait with closed lips, one as it was taken, and a drawn head."""
    pictures = {name: cv2.imread(str(SAMPLES / f"{name}.jpg")) for name in ("astronaut", "hopper")}
    return pictures | {"drawn head": next(read_frames(SAMPLES / "face.mp4", Fraction(25)))}


class Drawn:
    """A picture, the box of its face, and what the tiny generator draws for six moments of a sound."""

    def __init__(self, picture: np.ndarray):
        detector, mesh = FaceDetector(weights.fetch("blazeface")), metrics.FaceMesh(weights.fetch("face_mesh"))
        self.picture = picture
        self.box = padded(detector(picture)[0], PADS, picture)
        self.points = mesh([picture], np.array(self.box))[0, :, :2]  # [468, 2]
        mel = melspectrogram(np.concatenate(list(read_sound(SAMPLES / "voice.wav", 16_000))))
        audio = np.stack([mel[None, :, start : start + 16] for start in (32, 51, 70, 96, 128, 160)])
        face = np.stack([generator_face(cut(picture, self.box))] * len(audio))
        faces = openvino_generator(prepare())(audio, face)
        self.faces = (faces * 255).astype(np.uint8).transpose(0, 2, 3, 1)  # [6, 96, 96, 3]

    def around(self, points, margin: int) -> tuple[slice, slice]:
        """The rows and columns of the picture around some points of the mesh."""
        (left, top), (right, bottom) = self.points[points].min(0), self.points[points].max(0)
        return slice(int(top) - margin, int(bottom) + margin), slice(int(left) - margin, int(right) + margin)


@pytest.fixture(scope="module", params=["astronaut", "hopper", "drawn head"])
def drawn(request, photos) -> Drawn:
    return Drawn(photos[request.param])


def steps(picture: np.ndarray, drawn: Drawn) -> list[np.ndarray]:
    """Mean differences [n] of neighbouring pixels across the left, right, lower and upper edge of the pasted half.

    Each reaches from outside the box to where the half is pasted in full. The upper one leaves out the columns of the
    mouth, whose lip may rise there.
    """
    left, top, right, bottom = drawn.box
    middle, deep = (top + bottom) // 2, (right - left) // 5
    inner = slice(left + deep, right - deep)
    mouth = drawn.around(MOUTH_CORNERS, 4)[1]
    cheeks = [*range(left + deep, mouth.start), *range(mouth.stop, right - deep)]
    picture = picture.astype(float)
    across = np.abs(np.diff(picture, axis=1))[middle:bottom].mean((0, 2))
    down = np.abs(np.diff(picture, axis=0))[:, inner].mean((1, 2))
    beside = np.abs(np.diff(picture, axis=0))[:, cheeks].mean((1, 2))
    return [
        across[left - 4 : left + deep],
        across[right - deep : right + 4],
        down[bottom - deep : bottom + 4],
        beside[middle - 4 : middle + deep],
    ]


def largest_step(after: np.ndarray, drawn: Drawn) -> float:
    """How much a step in the result exceeds all those of the original within three pixels, at most."""
    excess = []
    for own, new in zip(steps(drawn.picture, drawn), steps(after, drawn), strict=True):
        near = np.max([np.roll(np.pad(own, 3, "edge"), shift)[3:-3] for shift in range(-3, 4)], axis=0)
        excess.append((new - near).max())
    return max(excess)


def test_the_eyes_stay_as_sharp_as_they_are(drawn):
    eyes = drawn.around(np.ravel(EYE_CORNERS), 6)
    before = metrics.sharpness(drawn.picture[eyes])
    for face in drawn.faces:
        assert metrics.sharpness(paste_lower_half(drawn.picture, face, drawn.box)[eyes]) == before
        assert metrics.sharpness(paste_rectangle(drawn.picture, face, drawn.box)[eyes]) < 0.5 * before


def test_nothing_changes_above_the_middle_or_outside_the_box(drawn):
    left, top, right, bottom = drawn.box
    before = drawn.picture.copy()
    changed = (paste_lower_half(drawn.picture, drawn.faces[0], drawn.box) != before).any(-1)
    inside = np.zeros_like(changed)
    inside[(top + bottom) // 2 : bottom, left:right] = True
    assert changed[inside].mean() > 0.5 and not changed[~inside].any()
    assert (drawn.picture == before).all()  # a copy is pasted into


@pytest.mark.parametrize("tint", [(0, 0, 0), (25, -15, 10)])
def test_no_seam_shows(drawn, tint):
    for face in drawn.faces:
        face = np.clip(face + np.array(tint), 0, 255).astype(np.uint8)
        result, authors = (paste(drawn.picture, face, drawn.box) for paste in (paste_lower_half, paste_rectangle))
        assert largest_step(result, drawn) < 0.25  # of 255
        assert largest_step(authors, drawn) > 1.5


def test_the_mouth_is_the_drawn_one(drawn):
    lips = drawn.around([13, 14, 17, 61, 291], 3)
    before = drawn.picture[lips].astype(float)
    for face in drawn.faces:
        result = paste_lower_half(drawn.picture, face, drawn.box)[lips]
        authors = paste_rectangle(drawn.picture, face, drawn.box)[lips]
        assert np.abs(result - authors.astype(float)).mean() < 4 and correlation(result, authors) > 0.995
    assert correlation(result, before) < correlation(result, authors)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


@pytest.mark.parametrize("tint", [(30, 0, 0), (0, -20, 10)])
def test_a_drawn_face_in_other_colours_takes_those_of_the_picture(drawn, tint):
    tinted = np.clip(drawn.faces[0] + np.array(tint), 0, 255).astype(np.uint8)
    left, top, right, bottom = drawn.box
    lower = slice((top + bottom) // 2, bottom), slice(left, right)
    result, expected = (paste_lower_half(drawn.picture, face, drawn.box)[lower] for face in (tinted, drawn.faces[0]))
    assert np.abs(result - expected.astype(float)).mean() < 0.02 * np.abs(tint).sum()


def test_the_lower_half_is_pasted_unless_the_rectangle_is_asked_for(drawn, tmp_path, monkeypatch):
    frames = []
    monkeypatch.setattr(lip_sync.Writer, "write", lambda self, picture: frames.append(picture))
    cv2.imwrite(str(tmp_path / "face.png"), drawn.picture)
    made = LipSync(prepare(), weights.fetch("blazeface"))
    middle = (drawn.box[1] + drawn.box[3]) // 2
    for options in ({}, {"paste": "rectangle"}):
        frames.clear()
        made(tmp_path / "face.png", sound(tmp_path / "voice.wav", tone(0.2)), tmp_path / "result.mp4", **options)
        same = (frames[0][:middle] == drawn.picture[:middle]).all()
        assert same == (not options) and (frames[0][middle:] != drawn.picture[middle:]).any()
    assert set(PASTES) == {"feathered", "rectangle"}
