"""The networks: what their parts do by other means, and that training reaches all of them."""

import math

import pytest
import torch

from notebooks.gpt_sovits.network import t2s
from notebooks.gpt_sovits.network.layers import Attention
from notebooks.gpt_sovits.network.sovits import Codebook, Spectrogram, SynthesizerTrn
from tests.gpt_sovits import small
from tests.gpt_sovits.small import CODES, PHONES, WIDTH, drawn, ids


@torch.inference_mode()
@pytest.mark.parametrize("length", [1, 3, 5, 12])
def test_distances_are_told_apart(length):
    """Against sums written out."""
    layer = small.randomised(Attention(12, 2, window=4))
    x = drawn(1, 12, length)
    query, keys, values = (y(x)[0].reshape(2, 6, length) for y in (layer.conv_q, layer.conv_k, layer.conv_v))
    seen = torch.zeros(2, 6, length)
    for head in range(2):
        for i in range(length):
            near = {j: j - i + 4 for j in range(length) if abs(j - i) <= 4}
            key = [keys[head, :, j] + (layer.emb_rel_k[0, near[j]] if j in near else 0) for j in range(length)]
            weights = torch.stack([query[head, :, i] @ k / math.sqrt(6) for k in key]).softmax(0)
            value = [values[head, :, j] + (layer.emb_rel_v[0, near[j]] if j in near else 0) for j in range(length)]
            seen[head, :, i] = sum(w * v for w, v in zip(weights, value, strict=True))
    assert torch.allclose(layer(x, x), layer.conv_o(seen.reshape(1, 12, length)), atol=1e-5)


@torch.inference_mode()
def test_padding_changes_nothing():
    network = small.synthesizer(posterior=True)
    mask, text_mask = torch.ones(2, 1, 10), torch.ones(2, 1, 7)
    mask[1, :, 6:] = text_mask[1, :, 4:] = 0
    codes, phones = ids(10, CODES).reshape(2, 5), ids(14, PHONES).reshape(2, 7)
    spectrogram, noise = drawn(2, 33, 10).abs(), drawn(2, 12, 10)

    def run(rows: slice, frames: int, text: int, *masks) -> list[torch.Tensor]:
        mask, text_mask = (x if x is None else x[rows] for x in masks)
        ge = network.style(spectrogram[rows, :, :frames], mask=mask)
        prior = network.prior(codes[rows, : frames // 2], phones[rows, :text], ge, frames, mask, text_mask)
        latents, *_ = network.enc_q(spectrogram[rows, :, :frames], ge, noise[rows, :, :frames], mask)
        return [*prior, latents, network.flow(latents, ge, mask)]

    together = run(slice(None), 10, 7, mask, text_mask)
    for whole, alone in zip(together, run(slice(1, 2), 6, 4, None, None), strict=True):
        assert torch.allclose(whole[1:, :, :6], alone, atol=1e-5)
        assert not whole[1:, :, 6:].any()
    for whole, alone in zip(together, run(slice(0, 1), 10, 7, None, None), strict=True):
        assert torch.allclose(whole[:1], alone, atol=1e-5)


@torch.inference_mode()
def test_the_flow_runs_back():
    network, z, ge = small.synthesizer(), drawn(2, 12, 9), drawn(2, 20, 1)
    there = network.flow(z, ge)
    assert (there - z).abs().max() > 0.1
    assert torch.allclose(network.flow(there, ge, reverse=True), z, atol=1e-5)


@torch.inference_mode()
def test_the_nearest_code_is_taken():
    network, ssl = small.synthesizer(), drawn(2, WIDTH, 9)
    distances = torch.cdist(network.ssl_proj(ssl).transpose(1, 2), network.codebook.embed)
    assert network.encode(ssl).tolist() == distances.argmin(-1).tolist()
    codes = torch.tensor([[4, 0, 31]])
    assert network.codebook.encode(network.codebook.decode(codes)).tolist() == codes.tolist()


@torch.inference_mode()
def test_a_tone_is_in_its_bin():
    rate, size, hop = 1000, 64, 20
    made = Spectrogram(small.DATA)(torch.sin(2 * math.pi * 125 * torch.arange(400) / rate)[None])
    assert made.shape == (1, 33, 400 // hop)
    assert (made[0, :, 3:-3].argmax(0) == 125 * size // rate).all() and (made[0, 8, 3:-3] - 16).abs().max() < 0.1


@torch.inference_mode()
def test_tokens_are_placed_from_nought_after_any_text():
    """Against PyTorch's own Transformer, which has the same names; the last row is that of the last token."""
    network = small.t2s()
    sizes = small.T2S["model"]
    layer = torch.nn.TransformerEncoderLayer(32, sizes["head"], sizes["linear_units"], 0.0, batch_first=True)
    plain = torch.nn.TransformerEncoder(layer, sizes["n_layer"], enable_nested_tensor=False).eval()
    plain.load_state_dict(network.h.state_dict())
    angles = torch.arange(9)[:, None] / 10000 ** (torch.arange(32) // 2 * 2 / 32)
    places = torch.where(torch.arange(32) % 2 == 0, angles.sin(), angles.cos())
    for phones in (3, 6):
        words, bert, tokens = ids(phones, PHONES), drawn(1, WIDTH, phones), ids(9, CODES)
        x = network.ar_text_embedding(words) + network.bert_proj(bert.mT)
        x = x + network.ar_text_position.alpha * places[:phones]
        y = network.ar_audio_embedding(tokens) + network.ar_audio_position.alpha * places
        blocked = torch.ones(phones + 9, phones + 9).triu(1).bool()
        blocked[:phones, :phones] = False
        expected = network.ar_predict_layer(plain(torch.cat([x, y], 1), blocked)[0, -4:])
        logits, cache = network.prefill(words, bert, tokens[:, :6])
        found = [logits]
        for i in range(6, 9):
            logits, cache = network.step(tokens[:, i : i + 1], i, cache)
            found.append(logits)
        assert (torch.cat(found) - expected).abs().max() < 2e-5


def test_training_reaches_every_weight():
    network = small.synthesizer(posterior=True, version="v2Pro", gin_channels=28).train()
    spectrogram = drawn(1, 33, 6).abs()
    ge = network.style(spectrogram, 0.01 * drawn(1, 20480))
    latents, mean, logs = network.enc_q(spectrogram, ge, drawn(1, 12, 6))
    _, prior, deviation = network.prior(ids(3, CODES), ids(4, PHONES), ge, 6)
    sound = network.dec(latents, ge)
    apart = (network.flow(latents, ge) - prior).square().sum() + deviation.sum() + logs.sum() + mean.sum()
    (sound.square().sum() + apart).backward()
    reached = {name for name, x in network.named_parameters() if x.grad is not None and x.grad.any()}
    missed = {name for name, _ in network.named_parameters()} - reached
    assert {name.partition(".")[0] for name in missed} == {"ssl_proj"}  # frozen: it makes the tokens


def test_training_reaches_every_weight_of_the_decoder():
    network = small.t2s().train()
    x = torch.cat(
        [network.embed_text(ids(5, PHONES), drawn(1, WIDTH, 5)), network.embed_audio(ids(4, CODES), ids(4, 4))], 1
    )
    states, _ = network.run(x, t2s.prefix_mask(9, 9, 5), network.empty_cache(1))
    network.ar_predict_layer(states).square().sum().backward()
    assert not [name for name, weight in network.named_parameters() if not weight.grad.any()]


def test_a_version_that_is_not_here_is_told():
    with pytest.raises(ValueError, match="no version 'v3' of SoVITS here. Known are v1, v2, v2Pro."):
        SynthesizerTrn({"data": small.DATA, "model": small.MODEL | {"version": "v3"}})


def test_a_vector_is_coded_by_the_nearest_of_the_codebook():
    codebook, x = Codebook(40, 12), torch.randn(2, 12, 7, generator=torch.Generator().manual_seed(0))
    expected = torch.cdist(x.transpose(1, 2), codebook.embed.expand(2, -1, -1)).argmin(2)
    assert (codebook.encode(x) == expected).all() and codebook.encode(x).shape == (2, 7)
