"""The verdict on lips: what is right wins, what must lose loses, whoever draws."""

import numpy as np
import pytest

from notebooks.wav2lip.convert import prepare
from notebooks.wav2lip.data import clips
from notebooks.wav2lip.measuring import metrics, quality
from notebooks.wav2lip.pipeline.detection import FaceDetector
from tests import examinations
from tests.wav2lip import small
from utils import compare, weights

GOALS = {"mouth correlation": 0.85, "mouth shape": 0.6, "lower face, PSNR (dB)": 40.0, "lower face, SSIM": 0.99}


@pytest.fixture(scope="module")
def trials() -> list[quality.Trial]:
    return [quality.trial(seed, FaceDetector(prepare("face_detection"))) for seed in (900, 901)]


@pytest.fixture(scope="module")
def judge(trials) -> quality.Evaluator:
    def expert(sounds, lips):  # knows loudness from colour, and nothing of lips
        return [np.stack([x.mean((1, 2, 3)), np.ones(len(x))], 1) for x in (sounds, lips)]

    return quality.Evaluator(trials, metrics.FaceMesh(weights.fetch("face_mesh")), expert)


def handed_through(audio: np.ndarray, face: np.ndarray) -> np.ndarray:
    return face[:, 3:]


def test_the_lips_are_redrawn_for_another_sentence():
    pairs = [quality.two_sentences(np.random.default_rng([seed, 40])) for seed in range(200, 212)]
    assert all(own.text != speech.text for own, speech in pairs)
    assert len({speech.text for _, speech in pairs}) > 3


def test_true_pictures_pass(judge, trials):
    found = judge.measure([trial.truth for trial in trials])
    assert judge.upper_bound() == found["mouth correlation"] > GOALS["mouth correlation"]
    assert found["lower face, PSNR (dB)"] == np.inf
    assert all(found[metric] > goal for metric, goal in GOALS.items())


def test_the_unchanged_video_and_loudness_lose(judge, trials):
    found = judge.measure([trial.pictures for trial in trials])
    assert all(found[metric] < goal for metric, goal in GOALS.items())
    assert judge.loudness() < GOALS["mouth correlation"]


def test_pictures_too_late_lose(judge, trials):
    assert judge.measure([np.roll(t.truth, 5, axis=0) for t in trials])["mouth correlation"] < 0.5


def test_redrawing_puts_what_is_drawn_into_the_box_and_nowhere_else(trials):
    trial = trials[0]
    drawn = quality.redraw(trial, lambda audio, face: np.zeros_like(face[:, 3:]))
    left, top, right, bottom = trial.boxes[0]
    assert (drawn[0, top:bottom, left:right] == 0).all()
    assert (drawn[0, :top] == trial.pictures[0, :top]).all()


def test_redrawing_hears_the_sound_of_the_trial_or_another(trials):
    heard = []

    def draw(audio, face):
        heard.append(audio)
        return handed_through(audio, face)

    quality.redraw(trials[0], draw)
    count = len(heard)
    quality.redraw(trials[0], draw, quality.silent_samples(trials[0]))
    assert np.ptp(np.concatenate(heard[:count])) > 2
    assert (np.concatenate(heard[count:]) == -4).all()


def test_the_table_has_each_precision_and_each_control(judge, trials):
    few = quality.Evaluator(trials[:1], judge.mesh, judge.expert)
    rows = quality.table(few, {"FP32": handed_through}, handed_through)
    correlation = [row for row in rows if row["metric"] == "mouth correlation"]
    assert [row["precision"] for row in correlation] == ["FP32"] + [None] * 5
    assert correlation[0]["pass"] and {row["metric"] for row in rows if "goal" in row} == {*quality.GOALS}
    assert compare.below_goal(correlation[0])
    # a generator that only copies is no better with the right sound: no control of it may be said to lose
    assert not any(row["pass"] for row in correlation[1:4])


def test_the_table_has_the_controls_that_are_asked_for(judge, trials):
    few = quality.Evaluator(trials[:1], judge.mesh, judge.expert)
    rows = quality.table(few, {"FP32": handed_through}, handed_through, [quality.SILENCE])
    controls = {row["control"] for row in rows if row["metric"] == "mouth shape" and "control" in row}
    assert controls == {quality.SILENCE}
    assert not any(quality.LATE_SOUND in row["metric"] for row in rows)


def test_the_notebook_measures_a_drawn_head_and_the_photo():
    assert set(quality.NOTEBOOK_TRIALS) < set(quality.TRIALS)
    assert quality.PHOTO_TRIAL in quality.NOTEBOOK_TRIALS and len(quality.NOTEBOOK_TRIALS) == 2


class StubEvaluator:
    """Scores of 30 for PyTorch and the three precisions, which are measured first, and of 0 for the controls."""

    trials = ()

    def __init__(self):
        self.scores = [30.0] * 4 + [0.0] * len(quality.CONTROLS)

    def measure(self, results):
        return dict.fromkeys([*quality.MARGINS, "sync offset (frames)"], self.scores.pop(0))

    def loudness(self):
        return 0.0

    def upper_bound(self):
        return 1.0


def test_the_examination_has_every_precision_and_the_stored_one_passes(tmp_path):
    seeds = []
    stubs = {"prepared_evaluator": lambda trials, model: seeds.extend(trials) or StubEvaluator()}
    stubs |= {"calibration": lambda: [], "openvino_generator": lambda *_: None, "torch_generator": lambda *_: None}
    stubs |= {"convert.prepare": lambda *_: tmp_path, "convert.load": lambda *_: None}
    stored = examinations.check("wav2lip", quality, stubs, tmp_path)
    assert seeds == [200, 201, 202, 203, 204, 205]
    for metric in quality.MARGINS:
        assert {row["precision"] for row in stored if row["metric"] == metric} == {"FP32", "BF16", "INT8", None}


def test_generators_of_both_runtimes_draw_the_same(generator_ir):
    rng = np.random.default_rng(0)
    audio = rng.uniform(-4, 4, (2, 1, 80, 16)).astype(np.float32)
    face = rng.random((2, 6, 96, 96), dtype=np.float32)
    drawn = quality.openvino_generator(generator_ir)(audio, face)
    np.testing.assert_allclose(drawn, quality.torch_generator(small.generator())(audio, face), atol=1e-4)


def test_calibration_has_true_inputs():
    (item,) = clips.calibration(clips=1, batch=3)
    assert item["audio"].shape == (3, 1, 80, 16) and item["face"].shape == (3, 6, 96, 96)
    assert (item["face"][:, :3, 48:] == 0).all() and item["face"][:, 3:, 48:].mean() > 0.1
