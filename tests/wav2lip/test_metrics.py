"""The mesh against mouths whose place is known; every number against one worked out by hand; every control."""

import numpy as np
import openvino as ov
import pytest
from skimage import data

from notebooks.wav2lip.measuring import metrics
from notebooks.wav2lip.measuring.metrics import (
    FaceMesh,
    correlation,
    delayed,
    loudness,
    mouth,
    picture_quality,
    shape_accuracy,
    shape_means,
    shuffled,
    sync_confidence,
)
from utils import weights

BOX = (173, 58, 275, 175)  # the astronaut's face
# Read off the enlarged photo by eye, in its pixels
SEEN = {"inner upper lip": (13, 222, 142.5), "inner lower lip": (14, 222, 149), "chin": (152, 221, 174)}
SEEN |= {"left corner of the mouth": (78, 202, 140), "right corner": (308, 243, 142)}
SEEN |= {"left eye": (33, 193, 100.5), "right eye": (263, 256, 103.5), "tip of the nose": (1, 223, 129)}


@pytest.fixture(scope="module")
def mesh() -> FaceMesh:
    return FaceMesh(weights.fetch("face_mesh"))


@pytest.fixture(scope="module")
def astronaut() -> np.ndarray:
    """[512, 512, 3] BGR: a smile that shows teeth."""
    return np.ascontiguousarray(data.astronaut()[..., ::-1])


@pytest.fixture(scope="module")
def points(mesh, astronaut) -> np.ndarray:
    return mesh([astronaut], BOX)


@pytest.mark.parametrize("what", SEEN)
def test_the_mesh_finds_a_real_face(points, what):
    number, x, y = SEEN[what]
    assert points[0, number, :2] == pytest.approx((x, y), abs=3)


def test_the_mouth_of_a_real_face(points):
    opening, width = mouth(points)
    assert opening == pytest.approx([6.5 / 63], abs=0.025) and width == pytest.approx([41 / 63], abs=0.05)


def test_the_mesh_moves_with_the_picture(mesh, astronaut, points):
    """Elsewhere, even at the edge of a larger or smaller picture, the face has the same points."""
    placed = np.zeros((300, 400, 3), np.uint8)
    placed[:150, 250:] = astronaut[40:190, 150:300]
    larger = astronaut.repeat(2, 0).repeat(2, 1)
    shift = np.array([100, -40])
    found = mesh([placed, larger], [np.add(BOX, [*shift, *shift]), np.multiply(BOX, 2)])
    assert found[0, :, :2] - shift == pytest.approx(points[0, :, :2], abs=3)
    assert found[1, :, :2] / 2 == pytest.approx(points[0, :, :2] + 0.25, abs=1.5)


def test_the_mesh_looks_at_rgb_in_0_to_1():
    frame = np.tile(np.array([255, 51, 0], np.uint8), (40, 40, 1))  # blue, some green
    seen = metrics._crop(frame, np.array([-10.0, 10.0]), np.array([20.0]))
    assert seen.shape == (192, 192, 3) and seen.dtype == np.float32
    assert seen[96, 150].tolist() == pytest.approx([0, 0.2, 1]) and not seen[96, 50].any()  # black outside


def test_a_frame_without_a_face_is_told(mesh, astronaut):
    with pytest.raises(ValueError, match="Frame 1 shows no face"):
        mesh([astronaut, np.zeros_like(astronaut)], BOX)


def test_another_file_is_refused(tmp_path):
    (tmp_path / "other.tflite").write_bytes(b"not a model")
    for path in (tmp_path / "other.tflite", weights.fetch("blazeface")):
        with pytest.raises(ValueError, match="is not the face mesh"):
            FaceMesh(path)


def test_mouth_is_measured_in_eye_distances():
    points = np.zeros((2, 468, 3), np.float32)
    points[:, 263] = 100, 0, 50  # depth does not count
    points[:, 13], points[:, 14] = (50, 60, 0), ((50, 60, 9), (50, 90, 9))
    points[:, 78], points[:, 308] = (30, 70, 0), (70, 100, 0)
    opening, width = mouth(points)
    assert opening.tolist() == pytest.approx([0, 0.3]) and width.tolist() == pytest.approx([0.5, 0.5])


def test_correlation_is_a_mean_over_clips():
    truth = [np.array([0.0, 1, 2]), np.array([0.0, 1, 0, 1])]
    assert correlation([3 * truth[0] + 1, -truth[1]], truth) == pytest.approx(0)
    assert correlation(truth, truth) == pytest.approx(1)
    assert correlation([np.array([1.0, 0, 2]), truth[1]], truth) == pytest.approx((0.5 + 1) / 2)
    assert correlation([np.ones(3), truth[1]], truth) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="clip 1 never moves"):
        correlation(truth, [truth[0], np.ones(4)])


CLASSES = ["closed", "closed", "round", "round", "open", "open", "other"]
TRUTH = np.array([0.0, 0.1, 0.2, 0.3, 0.8, 0.9, 9]), np.array([0.5, 0.6, 0.2, 0.3, 0.6, 0.7, 9])


def test_shape_means():
    means = shape_means(TRUTH, CLASSES)
    assert list(means) == ["closed", "round", "open"]
    assert means["round"] == pytest.approx((0.25, 0.25)) and means["open"] == pytest.approx((0.85, 0.65))
    with pytest.raises(ValueError, match="class 'open'"):
        shape_means(TRUTH, ["closed", "round"] * 3 + ["other"])


def test_shape_accuracy():
    assert shape_accuracy(TRUTH, TRUTH, CLASSES) == 1
    still = np.full(7, 0.05), np.full(7, 0.55)
    assert shape_accuracy(still, TRUTH, CLASSES) == pytest.approx(1 / 3)
    opening, width = np.copy(TRUTH)
    opening[4] = 0.05  # an open mouth that stayed closed: half of one class
    assert shape_accuracy((opening, width), TRUTH, CLASSES) == pytest.approx(5 / 6)
    width[2:4] = 0.55  # round ones that are wide
    assert shape_accuracy((opening, width), TRUTH, CLASSES) == pytest.approx(0.5)
    assert shape_accuracy((100 * opening, width), (100 * TRUTH[0], TRUTH[1]), CLASSES) == pytest.approx(0.5)


def test_picture_quality_looks_at_the_lower_half():
    truth = np.random.default_rng(0).integers(0, 200, (2, 32, 32, 3), np.uint8)
    assert picture_quality(truth[:1] // 2 * 2 + 1, truth[:1])[1] > 0.99
    result = truth.copy()
    result[:, :16] = 0
    result[:, 16:] += 5
    psnr, ssim = picture_quality(result, truth)
    assert psnr == pytest.approx(20 * np.log10(255 / 5), abs=1e-4)
    assert 0.9 < ssim < 1
    result[0, 16:] = truth[1, 16:]
    assert picture_quality(result, truth)[1] < 0.6


def scene(frames: int = 40, late: int = 0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Faces whose lower halves have the brightness of the sound then, `late` frames after it; and the mel."""
    rng = np.random.default_rng(seed)
    level = rng.integers(20, 230, frames + 40)
    faces = np.zeros((frames, 8, 8, 3), np.uint8)
    faces[:, 4:, :, 0] = level[20 - late : 20 - late + frames, None, None]
    faces[:, :4] = rng.integers(0, 255, (frames, 4, 8, 3))  # what the expert must not look at
    starts = (np.arange(frames + 5) * 3.2).astype(int)
    mel = np.zeros((80, starts[-1]), np.float32)
    for level_now, start, end in zip(level[20:], starts, starts[1:], strict=False):
        mel[:, start:end] = level_now / 255
    return faces, mel


def expert(sounds: np.ndarray, lips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings [B, 2]: the levels of the first and the last frame, as they sound and as they look."""
    assert sounds.shape[1:] == (1, 80, 16) and lips.shape[1:] == (15, 4, 8)
    assert lips.dtype == sounds.dtype == np.float32 and not lips[:, [1, 2]].any()
    return sounds[:, 0, 0, [1, 14]], lips[:, [0, 12], 0, 0]


@pytest.mark.parametrize("late", [-5, 0, 3])
def test_sync_confidence_finds_the_offset(late):
    offset, confidence = sync_confidence(expert, *scene(late=late))
    assert offset == late and confidence > 0.2


def test_sync_confidence_is_low_for_another_clips_sound():
    faces, mel = scene()
    assert sync_confidence(expert, faces, scene(seed=1)[1])[1] < 0.5 * sync_confidence(expert, faces, mel)[1]


def test_the_experts_ir_takes_what_sync_confidence_gives(expert_ir):
    compiled = ov.Core().compile_model(expert_ir, "CPU")
    faces = np.random.default_rng(0).integers(0, 255, (22, 96, 96, 3), np.uint8)
    offset, confidence = sync_confidence(lambda *inputs: compiled(inputs).values(), faces, scene()[1])
    assert -15 <= offset <= 15 and 0 < confidence < 2  # embeddings have length 1


def test_a_clip_too_short_for_offsets_is_refused():
    faces, mel = scene()
    for clip in ((faces[:19], mel), (faces, mel[:, :60])):
        with pytest.raises(ValueError, match="SyncNet needs 20"):
            sync_confidence(expert, *clip)


def test_shuffled_sound_is_the_same_pieces_in_another_order():
    samples = np.repeat(np.arange(5, dtype=np.float32), 6400)
    mixed = shuffled(samples, np.random.default_rng(0))
    assert sorted(mixed[::6400]) == [0, 1, 2, 3, 4] and (mixed != samples).any()
    for seed in range(8):
        assert shuffled(samples[6300:6500], np.random.default_rng(seed))[0] == 1  # two halves always change places


def test_delayed_sound():
    samples = np.arange(1, 3201, dtype=np.float32)
    assert np.array_equal(delayed(samples, 2), np.concatenate([np.zeros(1280), samples[:-1280]]))
    assert np.array_equal(delayed(samples, -2), np.concatenate([samples[1280:], np.zeros(1280)]))
    assert np.array_equal(delayed(samples, 0), samples)


def test_loudness():
    samples = np.zeros(16_000, np.float32)
    samples[8000:] = 0.5
    assert loudness(samples, [0.2, 0.5, 0.8]) == pytest.approx([0, 0.5 / np.sqrt(2), 0.5], abs=1e-6)
    assert loudness(samples, [-1, 2]).tolist() == [0, 0]
