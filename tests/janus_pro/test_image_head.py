"""The image head during training: codes share the vectors of what they show, and pairs that are never named profit."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from notebooks.janus_pro import data
from notebooks.janus_pro.training import image_head, settings
from utils.drawn_world.scenes import COLOURS, SHAPES, Scene, Thing

PAIRS = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])  # colour and shape of four codes; the last is held out


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(image_head, "BATCH", 10)
    monkeypatch.setattr(image_head, "SCENES", 10)
    return settings.untrained()


def test_a_thing_covers_four_tokens_with_its_colour_and_corners():
    thing = Thing("star", "yellow", 48, 16, data.THING_PX, 1)
    shown = image_head.aspects(Scene(data.SIDE_PX, data.SIDE_PX, (255, 255, 255), (thing,))).reshape(6, 6, 2)
    colour, first = 1 + list(COLOURS).index("yellow"), 1 + 4 * SHAPES.index("star")
    assert shown[:2, 2:4, 0].eq(colour).all() and int(shown[..., 0].sum()) == 4 * colour
    assert shown[:2, 2:4, 1].tolist() == [[first, first + 1], [first + 2, first + 3]]


def test_codes_are_counted_by_what_they_show(model, monkeypatch):
    def tokens(model, pixels):  # a code for the blank patches, and one for all others
        return 1 + (pixels.unfold(2, 16, 16).unfold(3, 16, 16).amin((1, 4, 5)) < 1).flatten(1).long()

    monkeypatch.setattr(image_head, "encode_pictures", tokens)
    monkeypatch.setattr(image_head, "SCENES", 1000)
    shown = image_head.aspects_of_codes(model)
    colours, corners, unused = shown.split([*image_head.ASPECTS, 1], -1)
    assert unused[:, 0].tolist() == [1, 0, 0] + [1] * 509
    assert colours[1, 0] == corners[1, 0] == 1  # the background
    assert colours[2, 0] == 0 and torch.allclose(colours[2, 1:], torch.tensor(1 / len(COLOURS)), atol=0.02)
    assert torch.allclose(corners[2, 1:], torch.tensor(1 / (4 * len(SHAPES))), atol=0.01)


def test_the_saved_matrix_is_an_ordinary_one_with_the_same_logits(model):
    head = model.model.generation_head
    image_head.split_head(model)
    with torch.no_grad():
        head.vision_head.parametrizations.weight.original.normal_()
    hidden = torch.randn(3, settings.WIDTH)
    before = head(hidden)
    image_head.add_products(model)
    assert torch.equal(head(hidden), before)
    with torch.no_grad():
        head.vision_head.parametrizations.weight[1].corners.normal_()
    split = head(hidden)
    image_head.join_head(model)
    assert torch.equal(head(hidden), split) and not head.vision_head.bias.any()
    assert not parametrize.is_parametrized(head.vision_head)
    assert head.vision_head.weight.shape == (model.config.vq_config.num_embeddings, settings.WIDTH)


@pytest.mark.parametrize("shared", [True, False])
def test_a_pair_that_was_never_asked_for_is_drawn_with_shared_vectors_alone(shared):
    """Words are one-hot vectors of a colour and a shape; the same training with a row for each code is the control."""
    torch.manual_seed(0)
    words = torch.cat([F.one_hot(PAIRS[:, 0], 2), F.one_hot(PAIRS[:, 1], 2)], -1).float()  # [codes, 4]
    layer = nn.Linear(4, 4, bias=False)
    if shared:
        parametrize.register_parametrization(layer, "weight", image_head.SumOfAspects(words))
    optimizer = torch.optim.SGD(layer.parameters(), 1.0)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(layer(words[:3]), torch.arange(3)).backward()
        optimizer.step()
    assert layer(words[:3]).argmax(-1).tolist() == [0, 1, 2]
    assert (int(layer(words[3]).argmax()) == 3) is shared


@pytest.mark.parametrize("products", [True, False])
def test_either_of_two_things_keeps_its_own_colour_with_products_alone(products, model):
    """A red star or a yellow circle is to be drawn, as likely; never a red circle or a yellow star."""
    torch.manual_seed(0)
    image_head.split_head(model)
    layer = model.model.generation_head.vision_head
    shown = torch.zeros_like(layer.parametrizations.weight[0].shown)
    shown[:, -1] = 1
    for code, (colour, shape) in enumerate(PAIRS.tolist()):
        shown[code, [1 + colour, image_head.ASPECTS[0] + 1 + shape]] = 1
        shown[code, -1] = 0
    layer.parametrizations.weight[0].shown.copy_(shown)
    if products:
        image_head.add_products(model)
    hidden = torch.randn(1, settings.WIDTH)
    optimizer = torch.optim.Adam([x for x in layer.parameters() if x.requires_grad], 0.02)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(layer(hidden).expand(2, -1), torch.tensor([0, 3])).backward()
        optimizer.step()
    probable = layer(hidden).softmax(-1)[0, : len(PAIRS)].detach()
    wrong = float(probable[[1, 2]].sum())
    assert wrong < 0.05 if products else wrong > 0.4


def test_a_stopped_training_goes_on_with_the_same_vectors(model):
    image_head.split_head(model)
    other = settings.untrained()
    image_head.split_head(other)
    for network in (model, other):
        image_head.add_products(network)
    with torch.no_grad():
        model.model.generation_head.vision_head.parametrizations.weight.original.normal_()
        model.model.generation_head.vision_head.parametrizations.weight[1].corners.normal_()
    other.load_state_dict(model.state_dict())
    hidden = torch.from_numpy(np.random.default_rng(0).normal(size=(2, settings.WIDTH))).float()
    assert torch.equal(other.model.generation_head(hidden), model.model.generation_head(hidden))
