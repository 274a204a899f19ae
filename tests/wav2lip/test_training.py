"""Training: what a batch holds, the beginning as a copy, stages that go on where they were."""

import numpy as np
import pytest
import torch

from notebooks.wav2lip import training
from notebooks.wav2lip.data import clips
from notebooks.wav2lip.network import SyncNet, Wav2Lip, save_tiny
from notebooks.wav2lip.training import Batches
from utils.training import loop

WIDTH = 1 / 16


@pytest.fixture(scope="module")
def batches() -> Batches:
    return Batches([clips.held_out_clip(0)])


@pytest.fixture
def short(monkeypatch, tmp_path):
    monkeypatch.setattr(training, "STEPS", {"audio_encoder": 4, "expert": 2, "generator": 4})
    monkeypatch.setattr(training, "WORK", tmp_path)


def test_the_generator_sees_the_upper_half_of_its_target_and_another_mouth(batches):
    batch = batches.generator_batch(2, np.random.default_rng(0), length=5)
    masked, reference = batch["face"][:, :3], batch["face"][:, 3:]
    assert batch["face"].shape == (10, 6, 96, 96)
    assert (masked[:, :, :48] == batch["target"][:, :, :48]).all() and (masked[:, :, 48:] == 0).all()
    assert (reference[:, :, 48:] - batch["target"][:, :, 48:]).abs().flatten(1).mean(1).min() > 0.002
    assert (batch["first"] == batch["mel"].unflatten(0, (2, 5))[:, 0]).all()


def test_references_are_unlike_what_they_are_for(batches):
    (clip,) = batches.clips
    rows = np.arange(len(clip.mouth))
    other = batches.dissimilar_frames(clip, rows, np.random.default_rng(0))
    apart = np.abs(clip.mouth[rows] - clip.mouth[other]).sum(1)
    typical = np.median(np.abs(clip.mouth[:, None] - clip.mouth[None]).sum(2), axis=1)
    assert (apart >= typical - 1e-6).all()


def test_errors_count_most_at_the_mouth_and_least_above():
    weight = training.pixel_weights(np.float32([[40, 70]]))[0, 0]
    assert divmod(int(weight.argmax()), 96) == (70, 40)
    assert weight[10, 48] < weight[94, 2] < weight[70, 40] / 5


def test_an_untrained_generator_hands_the_reference_through(batches):
    batch = batches.generator_batch(4, np.random.default_rng(0))

    def likeness(generator: Wav2Lip) -> float:
        with torch.no_grad():
            drawn = generator.train()(batch["mel"], batch["face"])
        return float(torch.corrcoef(torch.stack([drawn.flatten(), batch["face"][:, 3:].flatten()]))[0, 1])

    torch.manual_seed(0)
    generator = Wav2Lip(0.25)
    before = likeness(generator)
    training.initialise_as_copy(generator)
    assert before < 0.4 < 0.6 < likeness(generator)


def test_a_stopped_stage_goes_on_to_the_same_weights(short, batches, monkeypatch):
    def hear():
        torch.manual_seed(0)
        generator = Wav2Lip(WIDTH)
        training.train_audio_encoder(generator, batches)
        return generator.audio_encoder.state_dict()

    whole = hear()
    (training.WORK / "audio_encoder.pt").unlink()
    monkeypatch.setitem(training.STEPS, "audio_encoder", 2)
    pace = loop.learning_rate_factor
    monkeypatch.setattr(loop, "learning_rate_factor", lambda step, steps: pace(step, 4))
    hear()
    monkeypatch.setitem(training.STEPS, "audio_encoder", 4)
    resumed = hear()
    assert all(torch.allclose(whole[key].float(), resumed[key].float(), atol=1e-5) for key in whole)


def test_all_stages_run_and_leave_the_hearing_alone(short, batches, tmp_path):
    torch.manual_seed(0)
    generator, expert = Wav2Lip(WIDTH), SyncNet(WIDTH)
    hearing = training.train_audio_encoder(generator, batches)
    heard = {key: x.clone() for key, x in generator.audio_encoder.state_dict().items()}
    training.copy_audio_encoder(generator, expert)
    training.train_expert(expert, batches)
    judged = {key: x.clone() for key, x in expert.state_dict().items()}
    before = generator.face_decoder_blocks[0][0].conv_block[0].weight.clone()
    training.train_generator(generator, expert, batches)
    assert all((heard[key] == x).all() for key, x in generator.audio_encoder.state_dict().items())
    assert all((judged[key] == x).all() for key, x in expert.state_dict().items())
    assert (before != generator.face_decoder_blocks[0][0].conv_block[0].weight).any()
    save_tiny(tmp_path / "tiny", generator, expert)
    assert "correlation" in training.held_out_summary(generator, hearing, expert, batches.clips)
