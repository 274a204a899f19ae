"""The vocoder's parts, its causality, its source of sines, and the network traced."""

import math

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

from notebooks.sambert_hifigan.network.vocoder import Generator, Upsample, folded
from tests.sambert_hifigan.small import NSF, VOCODER, traced, vocoder


def mel(frames: int = 9, nsf: bool = False, batch: int = 1, seed: int = 0) -> torch.Tensor:
    """[B, 10, F], with NSF [B, 12, F]: voice at about 200 Hz, none in the first two frames."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, 10, frames, generator=generator)
    f0 = 180 + 40 * torch.rand(batch, 1, frames, generator=generator)
    voiced = (torch.arange(frames) > 1).float().expand(batch, 1, -1)
    return torch.cat([x, f0, voiced], 1) if nsf else x


def source_inputs(network: Generator, frames: int = 9, batch: int = 1, seed: int = 1) -> tuple[torch.Tensor, ...]:
    """phase and noise for so many frames, or nothing without NSF."""
    if not network.nsf:
        return ()
    generator = torch.Generator().manual_seed(seed)
    phase = (torch.rand(batch, network.sines, 1, generator=generator) - 0.5) * 2 * math.pi
    phase[:, 0] = 0
    return phase, torch.randn(batch, network.sines, frames * network.hop, generator=generator)


KINDS = {"plain": {}, "causal": {"causal": True}, "nsf": NSF, "causal nsf": NSF | {"causal": True}}
every_kind = pytest.mark.parametrize("kind", KINDS)


@torch.inference_mode()
@every_kind
def test_every_frame_becomes_its_samples(kind):
    network, nsf = vocoder(**KINDS[kind]), "nsf" in kind
    sound = network(mel(nsf=nsf, batch=2), *source_inputs(network, batch=2))
    assert sound.shape == (2, 1, 9 * 24) and sound.abs().max() <= 1 and sound.std() > 0.01


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["causal", "causal nsf"])
def test_a_causal_vocoder_does_not_look_ahead(kind):
    network = vocoder(**KINDS[kind])
    nsf = "nsf" in kind
    inputs = source_inputs(network)
    one = mel(nsf=nsf)
    other = one.clone()
    other[:, :10, 6:] += 1
    sounds = [network(x, *inputs)[0, 0] for x in (one, other)]
    assert (sounds[0] - sounds[1])[: 6 * 24].abs().max() == 0
    assert (sounds[0] - sounds[1])[6 * 24 :].abs().max() > 1e-3
    if nsf:  # a pitch that is not there yet is not heard
        other = one.clone()
        other[:, 10, 6:] += 50
        assert (network(other, *inputs)[0, 0] - sounds[0])[: 6 * 24].abs().max() == 0


@torch.inference_mode()
def test_another_vocoder_looks_ahead_as_far_as_back():
    network, x = vocoder(), mel(frames=21)
    other = x.clone()
    other[:, :, 10] += 1
    changed = ((network(x) - network(other))[0, 0].abs() > 1e-5).nonzero()[:, 0]
    before, after = 10 * 24 - changed[0], changed[-1] - (11 * 24 - 1)
    assert before > 24 and abs(before - after) <= 4


@torch.inference_mode()
@pytest.mark.parametrize(("kernel", "stride"), [(8, 4), (7, 3), (4, 2), (7, 4)])
@pytest.mark.parametrize("causal", [False, True])
def test_upsampling_is_by_the_stride(kernel, stride, causal):
    assert Upsample(3, 2, kernel, stride, causal, bias=True)(torch.randn(1, 3, 5)).shape == (1, 2, 5 * stride)


@torch.inference_mode()
def test_the_source_is_sines_at_the_pitch_and_its_multiples():
    """Against the sines of the integral of the pitch, in float64 and without wrapping."""
    source = vocoder(**NSF).source_module
    source.ffn[0].weight.data.fill_(1.0)
    source.ffn[0].bias.data.fill_(0)
    frames = 400
    f0 = torch.linspace(90, 300, frames)[None, None]
    phase = torch.tensor([0.0, 1.0, -2.0, 3.0])[None, :, None]
    made = source(f0, torch.ones_like(f0), phase, torch.zeros(1, 4, frames * 24)).atanh()
    turns = (f0.double().repeat_interleave(24, -1) / 2400).cumsum(-1)
    sines = 0.1 * (2 * math.pi * turns * torch.arange(1, 5)[:, None] + phase).sin()
    assert (made - sines.sum(1, keepdim=True)).abs().max() < 1e-3


@torch.inference_mode()
def test_where_there_is_no_voice_there_is_louder_noise():
    source = vocoder(**NSF).source_module
    source.ffn[0].weight.data.copy_(torch.tensor([1.0, 0, 0, 0])[None, :, None])
    source.ffn[0].bias.data.fill_(0)
    f0, voiced = torch.full((1, 1, 4), 200.0), torch.tensor([[[0.0, 0, 1, 1]]])
    phase, noise = torch.zeros(1, 4, 1), torch.randn(1, 4, 96)
    made = source(f0, voiced, phase, noise).atanh()[0, 0]
    assert torch.allclose(made[:48], noise[0, 0, :48] * 0.1 / 3, atol=1e-6)
    without = source(f0, voiced, phase, 0 * noise).atanh()[0, 0]
    assert torch.allclose((made - without)[48:], noise[0, 0, 48:] * 0.003, atol=1e-6)


@torch.inference_mode()
@pytest.mark.parametrize("layer", [torch.nn.Conv1d(5, 3, 4), torch.nn.ConvTranspose1d(5, 3, 4)], ids=["plain", "up"])
def test_folding_weight_norm_is_pytorch_s(layer):
    """Over all but the first dimension, which is the inputs' in a transposed convolution."""
    normed = weight_norm(layer)
    normed.parametrizations.weight.original0.mul_(1.7)
    length, direction = normed.parametrizations.weight.original0, normed.parametrizations.weight.original1
    made = folded({"a.weight_g": length, "a.weight_v": direction, "a.bias": layer.bias})
    assert made.keys() == {"a.weight", "a.bias"} and torch.allclose(made["a.weight"], normed.weight, atol=1e-6)


@torch.inference_mode()
@every_kind
def test_traced_it_sounds_the_same(kind):
    network, nsf = vocoder(**KINDS[kind]), "nsf" in kind
    convert = traced(network, mel(4, nsf), *source_inputs(network, 4))
    inputs = mel(11, nsf, batch=2), *source_inputs(network, 11, batch=2)
    (sound,) = convert(*inputs)
    expected = network(*inputs)
    assert sound.shape == expected.shape and (sound - expected).abs().max() < 1e-5


def test_training_reaches_every_weight():
    network = vocoder(**NSF).train()
    network(mel(nsf=True), *source_inputs(network)).square().sum().backward()
    assert not [name for name, x in network.named_parameters() if not x.grad.any()]


def test_settings_that_are_missing_or_not_known_are_named():
    with pytest.raises(ValueError, match="configuration of Generator has no 'upsample_scales'"):
        params = {key: x for key, x in VOCODER.items() if key != "upsample_scales"}
        Generator({"Model": {"Generator": {"params": params}}})
    with pytest.raises(ValueError, match="4 channels with LeakyReLU is not known"):
        vocoder(out_channels=4)
