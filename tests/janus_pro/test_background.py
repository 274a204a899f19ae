"""The cause of colours on blank areas is measured: which pixels count, and what the statistics of a picture change."""

import numpy as np
import pytest
import torch
from PIL import Image

from notebooks.janus_pro import convert
from notebooks.janus_pro.data import held_out_prompts
from notebooks.janus_pro.measuring import background
from notebooks.janus_pro.network.reference import Reference
from utils import weights


@pytest.fixture(scope="module")
def tiny() -> Reference:
    return Reference(weights.resolve(convert.MODELS["tiny"]["checkpoint"]))


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    return [picture for picture, _ in held_out_prompts("several", 6)]


def test_only_pixels_far_from_things_count():
    tokens = np.full((1, 36), 3)
    tokens[0, 0] = 5
    pixels = np.full((1, 12, 12, 3), 255.0)
    pixels[0, :4, :4] = 0  # the thing and its neighbours
    pixels[0, 11, 11, 1] = 245
    off = background.distances_from_white(pixels, tokens, 3)
    assert off.shape == (4 * (36 - 4),) and sorted(off)[-2:] == [0, 10]


def test_with_its_own_statistics_a_picture_is_decoded_as_it_is(tiny, pictures):
    tokens = tiny.encode(pictures[:1])
    as_it_is = background.decode(tiny, tokens)
    assert np.abs(background.decode(tiny, tokens, tokens) - as_it_is).max() < 0.05
    assert np.abs(as_it_is[0].clip(0, 255) - np.asarray(tiny.decode(tokens)[0])).max() <= 1
    assert not any(layer._forward_hooks for layer in tiny.model.model.vqmodel.decoder.modules())


def test_colours_on_blank_areas_come_from_the_statistics_and_not_from_tokens(tiny, pictures):
    """What the notebook says of tiny."""
    tokens, code = tiny.encode(pictures), background.background_token(tiny)
    assert set(background.tokens_of_blank_areas(tiny, pictures, tokens)) == {code}
    decoded = background.decodings(tiny, tokens)
    as_it_is, with_empty = (
        background.distances_from_white(decoded[name], tokens, code).mean()
        for name in (background.AS_IS, background.EMPTY_STATISTICS)
    )
    assert with_empty < 0.7 * as_it_is
    assert [line[0] for line in background.table(tiny, tokens).rows] == list(decoded)


def test_an_autoencoder_without_a_token_of_the_background_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(tiny, "encode", lambda pictures: np.array([[1, 2]]))
    with pytest.raises(ValueError, match="A white picture has 2 different tokens"):
        background.background_token(tiny)


def test_blank_areas_are_those_that_are_white(tiny):
    picture = Image.new("RGB", (96, 96), "white")
    picture.putpixel((20, 3), (254, 255, 255))
    tokens = np.arange(36)[None]
    assert background.tokens_of_blank_areas(tiny, [picture], tokens).tolist() == [0, *range(2, 36)]
    assert torch.is_grad_enabled()
