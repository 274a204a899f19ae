"""The packaged detector frames real faces as Wav2Lip wants them; S3FD is fed and decoded as by its authors."""

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from notebooks.wav2lip.pipeline import PADS, padded
from notebooks.wav2lip.pipeline.detection import S3FD_STRIDES, FaceDetector
from tests.wav2lip.files import channels, generator, hopper
from utils import weights

EYES, MOUTH, CHIN = [(217, 189), (307, 186)], [(231, 277), (306, 273)], (271, 333)  # of the portrait, 600 pixels high


@pytest.fixture(scope="module")
def blazeface() -> FaceDetector:
    return FaceDetector(weights.fetch("blazeface"))


def on_canvas(height: int, width: int, *placed: tuple[np.ndarray, int, int]) -> np.ndarray:
    """Pictures at (left, top) on grey."""
    canvas = np.full((height, width, 3), 120, np.uint8)
    for picture, left, top in placed:
        canvas[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return canvas


@pytest.mark.parametrize("height", [600, 200])
def test_the_mouth_fills_the_half_that_is_drawn_anew(blazeface, height):
    picture, scale = hopper(height), height / 600
    (face,) = blazeface(picture)
    left, top, right, bottom = padded(face, PADS, picture)
    across, down = (lambda x: (x * scale - left) / (right - left)), (lambda y: (y * scale - top) / (bottom - top))
    assert all(0.15 < across(x) < 0.85 and 0.2 < down(y) < 0.45 for x, y in EYES)
    assert all(0.15 < across(x) < 0.85 and 0.55 < down(y) < 0.85 for x, y in MOUTH)
    assert 0.8 < down(CHIN[1]) < 1
    assert 1 < (bottom - top) / (right - left) < 1.45 and 0.75 < face[4] <= 1


def test_a_box_stays_with_its_face_wherever_it_is(blazeface):
    portrait = hopper(300)
    boxes = []
    for left, top in [(3, 2), (101, 57), (340, 70), (611, 33)]:
        (face,) = blazeface(on_canvas(400, 900, (portrait, left, top)))
        boxes.append(face[:4] - [left, top, left, top])
    assert np.ptp(boxes, axis=0).max() < 0.05 * 100  # the face is 100 pixels wide


def test_a_small_face_is_found_in_parts_of_a_wide_picture(blazeface):
    portrait = hopper(150)
    (alone,) = blazeface(portrait)
    (face,) = blazeface(on_canvas(360, 900, (portrait, 600, 100)))
    assert face[:4] - [600, 100, 600, 100] == pytest.approx(alone[:4], abs=5)


def test_every_face_is_found_once(blazeface):
    faces = blazeface(on_canvas(320, 560, (hopper(300), 0, 10), (hopper(240), 300, 40)))
    assert len(faces) == 2 and (faces[0, 0] < 256) != (faces[1, 0] < 256)
    assert (np.diff(faces[:, 4]) <= 0).all()


def test_a_grey_face_is_a_face(blazeface):
    grey = np.repeat(hopper().mean(-1, keepdims=True).astype(np.uint8), 3, -1)
    assert blazeface(grey)[0, :4] == pytest.approx(blazeface(hopper())[0, :4], abs=6)


@pytest.mark.parametrize("shape", [(100, 100), (37, 301), (1, 1)])
def test_without_a_face_there_is_no_box(blazeface, shape):
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    assert blazeface(noise).shape == (0, 5)


def s3fd(path, size: int = 64):
    """A stand-in for S3FD that sees one face, of stride 16 in row 1 and column 2, moved by the picture's colours."""
    image = ops.parameter([1, 3, size, size], np.float32, "image")
    mean = ops.reduce_mean(image, [2, 3], keep_dims=True) / ops.constant(np.float32(100))
    outputs = []
    for stride in S3FD_STRIDES:
        cells = max(1, size // stride)
        scores = np.zeros((1, 2, cells, cells), np.float32)
        scores[:, 0] = 9
        if stride == 16:
            scores[0, :, 1, 2] = 0, 3
        offsets = ops.broadcast(ops.concat([mean, ops.slice(mean, [2], [3], [1], [1])], 1), [1, 4, cells, cells])
        for name, node in (("scores", ops.constant(scores)), ("offsets", offsets)):
            result = ops.result(node)
            result.output(0).get_tensor().set_names({f"{name}_{stride}"})
            outputs.append(result)
    ov.save_model(ov.Model(outputs, [image]), path)
    return path


def test_s3fd_is_fed_and_decoded_as_by_its_authors(tmp_path):
    blue, green, red = 143, 97, 154
    frame = np.full((64, 64, 3), (blue, green, red), np.uint8)
    (face,) = FaceDetector(s3fd(tmp_path / "s3fd.xml"))(frame)
    moved = (red - 104) / 100, (green - 117) / 100, (blue - 123) / 100  # red less the mean of blue: so they do
    x, y = 2 * 16 + 8 + moved[0] * 0.1 * 64, 1 * 16 + 8 + moved[1] * 0.1 * 64
    half = 32 * np.exp(moved[2] * 0.2)
    assert face == pytest.approx([x - half, y - half, x + half, y + half, 1 / (1 + np.exp(-3))], abs=1e-3)


def test_another_file_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="none.xml is not there"):
        FaceDetector(tmp_path / "none.xml")
    (tmp_path / "text.onnx").write_text("no model", encoding="utf-8")
    with pytest.raises(ValueError, match="text.onnx cannot be read as a face detector"):
        FaceDetector(tmp_path / "text.onnx")
    other = generator(tmp_path / "other.xml", lambda audio, face: channels(face, 3))
    with pytest.raises(ValueError, match="neither S3FD nor BlazeFace"):
        FaceDetector(other)
    with pytest.raises(ValueError, match=r"TOASTER cannot run the model: .*Devices here: .*CPU"):
        FaceDetector(weights.fetch("blazeface"), "TOASTER")
