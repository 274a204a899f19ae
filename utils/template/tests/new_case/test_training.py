"""Training learns, is seeded, and saves what it learned; the committed checkpoint is good."""

import pytest
import torch

from notebooks.new_case import convert, data, network, training
from notebooks.new_case.measuring import accuracy


@pytest.fixture(scope="module")
def few() -> data.Digits:
    return data.Digits(*(array[:200] for array in data.training_set()))


def test_training_learns_and_what_is_saved_comes_back(few, tmp_path):
    trained = training.train(few, epochs=20)
    scores, at_random = (network.predict(model, few.pictures) for model in (trained, network.random()))
    assert accuracy(scores, few.labels) > 0.8 > accuracy(at_random, few.labels)
    training.save(trained, tmp_path)
    restored = network.load(tmp_path).state_dict()
    assert all(torch.equal(restored[name], tensor) for name, tensor in trained.state_dict().items())


def test_training_is_seeded(few):
    first, second = (training.train(few, epochs=1).output.weight for _ in range(2))
    assert torch.equal(first, second)


def test_the_committed_checkpoint_is_good():
    pictures, labels = data.held_out()
    assert accuracy(network.predict(convert.load("tiny"), pictures), labels) > 0.9
