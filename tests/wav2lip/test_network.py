"""The networks' parts against what they are meant to compute, and the reading and writing of checkpoints."""

import os
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from notebooks.wav2lip.network import (
    S3FD,
    Conv,
    L2Norm,
    SyncNet,
    Upsample,
    Wav2Lip,
    load_released,
    load_tiny,
    save_tiny,
)
from tests.wav2lip import small


def batch_norm(x: torch.Tensor, layer: nn.BatchNorm2d) -> torch.Tensor:
    mean, variance, weight, bias = (
        values[:, None, None] for values in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
    )
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


@pytest.mark.parametrize(("kind", "count"), [(Wav2Lip, 36_298_035), (SyncNet, 16_435_072), (S3FD, 22_459_110)])
def test_the_released_networks_have_their_published_sizes(kind, count):
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in kind().parameters()) == count


@torch.no_grad()
def test_a_residual_is_added_before_the_relu():
    layer, x = small.randomised(Conv(4, 4, residual=True)), torch.randn(2, 4, 5, 6)
    convolution, normalisation = layer.conv_block
    y = batch_norm(nn.functional.conv2d(x, convolution.weight, convolution.bias, padding=1), normalisation)
    assert (layer(x) - (y + x).clamp_min(0)).abs().max() < 1e-5
    layer.residual = False
    assert (layer(x) - y.clamp_min(0)).abs().max() < 1e-5


@torch.no_grad()
def test_upsampling_doubles_or_widens_by_two():
    assert small.randomised(Upsample(4, 3))(torch.randn(2, 4, 5, 6)).shape == (2, 3, 10, 12)
    first = small.randomised(Upsample(4, 3, stride=1, padding=0))
    assert first(torch.randn(2, 4, 1, 1)).shape == (2, 3, 3, 3)


@torch.no_grad()
def test_l2norm_gives_channels_the_length_of_their_weight():
    layer = L2Norm(8, scale=10.0)
    lengths = layer(torch.randn(2, 8, 3, 4)).norm(dim=1)
    assert (lengths - 10).abs().max() < 1e-4
    assert (layer(torch.zeros(1, 8, 2, 2)) == 0).all()


def test_the_expert_embeds_on_the_unit_sphere():
    rng = np.random.default_rng(0)
    audio, face = small.random_inputs(3)["audio"], rng.random((3, 15, 48, 96), dtype=np.float32)
    embeddings = small.run(small.expert(), audio, face)
    for embedding in embeddings:
        assert embedding.shape == (3, 64) and np.abs(np.linalg.norm(embedding, axis=1) - 1).max() < 1e-5
    assert np.abs(embeddings[0][0] - embeddings[0][1]).max() > 1e-2


def test_a_face_depends_on_its_own_sound_and_picture_alone():
    made, items = small.generator(), small.random_inputs(3)
    together = small.run(made, items["audio"], items["face"])
    assert together.shape == (3, 3, 96, 96) and together.min() >= 0 and together.max() <= 1
    for row in range(3):
        alone = small.run(made, items["audio"][row : row + 1], items["face"][row : row + 1])
        assert np.abs(alone - together[row]).max() < 1e-5
    changed = small.run(made, items["audio"][::-1].copy(), items["face"])
    assert np.abs(changed - together)[[0, 2]].max() > 1e-3 and np.abs(changed - together)[1].max() < 1e-5


def test_frames_in_a_row_are_the_same_frames_apart():
    made, items = small.generator(), small.random_inputs(6)
    apart = small.run(made, items["audio"], items["face"])
    audio, face = items["audio"].reshape(2, 3, 1, 80, 16), items["face"].reshape(2, 3, 6, 96, 96)
    row = small.run(made, audio, face.transpose(0, 2, 1, 3, 4).copy())
    assert np.abs(row.transpose(0, 2, 1, 3, 4).reshape(apart.shape) - apart).max() < 1e-5


def released(made: nn.Module, path, **extra):
    """A file as the authors write it: names as DataParallel has them, and the state of the optimizer beside them."""
    state = {f"module.{key}": x for key, x in made.state_dict().items()}
    optimizer = {"state": {0: {"step": 3, "exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]}
    torch.save({"state_dict": state | extra, "optimizer": optimizer, "global_step": 5, "global_epoch": 1}, path)
    return path


def test_a_released_checkpoint_is_read_whole(tmp_path):
    made = small.generator(seed=1)
    path = released(made, tmp_path / "wav2lip_gan.pth")
    read = load_released(path, Wav2Lip(small.WIDTH).train())
    assert not read.training
    items = small.random_inputs()
    assert (small.run(read, *items.values()) == small.run(made, *items.values())).all()


def test_a_plain_state_dict_is_read_too(tmp_path):
    torch.save(small.expert().state_dict(), tmp_path / "expert.pth")
    read = load_released(tmp_path / "expert.pth", SyncNet(small.WIDTH))
    assert torch.equal(read.audio_encoder[0].conv_block[0].weight, small.expert().audio_encoder[0].conv_block[0].weight)


def test_missing_and_unknown_tensors_are_listed_and_the_network_stays(tmp_path):
    made = small.generator(seed=1)
    before = small.generator().state_dict()
    into = small.generator()
    state = made.state_dict()
    del state["output_block.1.bias"]
    state |= {"output_block.9.bias": torch.zeros(3), "audio_encoder.0.conv_block.0.bias": torch.zeros(7)}
    torch.save(state, tmp_path / "other.pth")
    with pytest.raises(ValueError) as told:
        load_released(tmp_path / "other.pth", into)
    sentence = str(told.value)
    assert "missing: output_block.1.bias;" in sentence and "not known to it: output_block.9.bias;" in sentence
    assert "of another shape: audio_encoder.0.conv_block.0.bias." in sentence
    assert all(torch.equal(x, before[key]) for key, x in into.state_dict().items())


def test_another_network_s_checkpoint_is_refused(tmp_path):
    path = released(small.expert(), tmp_path / "expert.pth")
    with pytest.raises(ValueError, match=r"no checkpoint of this Wav2Lip.*and \d+ more"):
        load_released(path, Wav2Lip(small.WIDTH))


def test_values_that_are_not_finite_are_refused(tmp_path):
    broken = {"output_block.1.bias": torch.tensor([0.0, float("nan"), 0.0])}
    torch.save(small.generator().state_dict() | broken, tmp_path / "nan.pth")
    with pytest.raises(ValueError, match="not finite: output_block.1.bias"):
        load_released(tmp_path / "nan.pth", Wav2Lip(small.WIDTH))


class Payload:
    """What a malicious file could hold: reading it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("write", [torch.save, lambda x, path: path.write_bytes(pickle.dumps(x))])
def test_program_code_in_a_checkpoint_is_not_run(write, tmp_path):
    write({"state_dict": Payload(str(tmp_path / "ran"))}, tmp_path / "bad.pth")
    with pytest.raises(ValueError, match="runs code when read is not opened"):
        load_released(tmp_path / "bad.pth", Wav2Lip(small.WIDTH))
    assert not (tmp_path / "ran").exists()


def test_wrong_files_are_refused_with_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="gone.pth is not there"):
        load_released(tmp_path / "gone.pth", Wav2Lip(small.WIDTH))
    (tmp_path / "text.pth").write_text("no checkpoint", encoding="utf-8")
    with pytest.raises(ValueError, match="text.pth is not a checkpoint"):
        load_released(tmp_path / "text.pth", Wav2Lip(small.WIDTH))
    for values in ([torch.zeros(1)], {"state_dict": [1, 2]}, {"epoch": 3}):
        torch.save(values, tmp_path / "list.pth")
        with pytest.raises(ValueError, match="holds no state dict"):
            load_released(tmp_path / "list.pth", Wav2Lip(small.WIDTH))


def test_the_tiny_checkpoint_comes_back_in_half_precision(tmp_path):
    made = small.generator(), small.expert()
    assert save_tiny(tmp_path / "tiny", *made) == tmp_path / "tiny"
    assert {file.name for file in (tmp_path / "tiny").iterdir()} == {
        "wav2lip.safetensors",
        "syncnet.safetensors",
        "config.json",
    }
    for before, after in zip(made, load_tiny(tmp_path / "tiny"), strict=True):
        assert after.width == small.WIDTH and not after.training
        state = before.state_dict()
        for key, x in after.state_dict().items():
            assert x.dtype == state[key].dtype and torch.equal(x, state[key].half().to(x.dtype))


def test_a_failed_save_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    made = small.generator(), small.expert()
    save_tiny(tmp_path, *made)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    made[1].face_encoder[0].conv_block[0].weight.data *= 1e9
    with pytest.raises(ValueError, match=r"syncnet cannot be saved.*face_encoder.0.conv_block.0.weight"):
        save_tiny(tmp_path, small.generator(seed=2), made[1])
    written = []

    def full(tensors, path, metadata):
        if written:
            raise OSError("no space left")
        written.append(path.write_bytes(b"first"))

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="no space left"):
        save_tiny(tmp_path, small.generator(seed=2), small.expert())
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_damaged_tiny_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no tiny checkpoint"):
        load_tiny(tmp_path)
    save_tiny(tmp_path, small.generator(), small.expert())
    whole = (tmp_path / "syncnet.safetensors").read_bytes()
    (tmp_path / "syncnet.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="holds no tiny checkpoint"):
        load_tiny(tmp_path)
    (tmp_path / "syncnet.safetensors").write_bytes((tmp_path / "wav2lip.safetensors").read_bytes())
    with pytest.raises(ValueError, match="no checkpoint of this SyncNet"):
        load_tiny(tmp_path)
