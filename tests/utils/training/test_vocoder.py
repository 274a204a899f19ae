"""What teaches vocoders: spectra, and critics that learn apart from the sound."""

import torch

from utils.training import vocoder


def test_spectra_tell_likeness():
    time = torch.arange(6400) / 16000
    one, near, far = (torch.sin(2 * torch.pi * f * time)[None, None] for f in (400.0, 404.0, 900.0))
    assert vocoder.spectral_error(one, one) == 0
    assert vocoder.spectral_error(-one, one) < 1e-3  # the phase is of no matter
    assert vocoder.spectral_error(near, one) < vocoder.spectral_error(far, one)


def test_the_critics_and_the_sound_learn_apart():
    torch.manual_seed(0)
    critics = vocoder.Discriminators([vocoder.PeriodDiscriminator(3, (1, 4, 8))])
    made, true = torch.randn(1, 1, 600, requires_grad=True), torch.randn(1, 1, 600)
    weights = list(critics.parameters())
    parts = vocoder.adversarial_losses(critics, made, true)
    assert torch.autograd.grad(parts["discriminators"], made, retain_graph=True, allow_unused=True) == (None,)
    for name in ("generator", "features"):
        assert all(g is None for g in torch.autograd.grad(parts[name], weights, retain_graph=True, allow_unused=True))
        assert torch.autograd.grad(parts[name], made, retain_graph=True)[0].any()
    assert all(g.any() for g in torch.autograd.grad(parts["discriminators"], weights))
