"""Training on a few users, saving and reading back; the committed checkpoint is what it says."""

import json

import numpy as np
import pytest
import torch

from notebooks.dien import convert, data, training
from notebooks.dien.network import DIEN, load_tiny, save_tiny
from notebooks.dien.network.checkpoint import TINY
from tests.dien.small import write_ratings


@pytest.fixture
def small(tmp_path, monkeypatch) -> data.MovieLens:
    movies = data.movielens(write_ratings(tmp_path / "ratings", users=30))
    monkeypatch.setattr(data, "movielens", lambda: movies)
    monkeypatch.setattr(training, "BATCH_SIZE", 64)
    return movies


@pytest.mark.parametrize("form", training.FORMS)
def test_training_lowers_the_loss_and_what_is_saved_comes_back(form, small, tmp_path):
    network = training.train(form, epochs=20)
    assert not network.training
    users, places = small.positions(held_out=False)
    fresh = DIEN(network.config)
    trained, before = (
        training.losses(one, small, users, places, np.random.default_rng(0))[0].item() for one in (network, fresh)
    )
    assert trained < before - 0.02
    save_tiny(network, form, tmp_path)
    again = load_tiny(form, tmp_path)
    assert again.config == network.config
    for name, tensor in network.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.half().float()), name
    assert sorted(file.name for file in tmp_path.glob("*.*")) == [f"{form}.json", f"{form}.safetensors"]


def test_training_is_seeded(small):
    one, other = (training.train("sum_pooling", epochs=1) for _ in range(2))
    assert torch.equal(one["dien/fcn/f1/kernel"], other["dien/fcn/f1/kernel"])


def test_a_form_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="holds no dien.safetensors. Train it: make train CASE=dien"):
        load_tiny("dien", tmp_path)
    with pytest.raises(SystemExit, match="There is no part 'lstm'. There are: dien, "):
        training.main(["lstm"])


def test_the_committed_checkpoint_fits_the_data_and_is_small():
    network = convert.load("tiny")
    config = network.config
    assert (config.n_uid, config.n_mid, config.n_cat) == data.movielens().sizes
    assert config.independent and config.evolution == "coded"
    assert sum(file.stat().st_size for file in TINY.iterdir()) < 10_000_000
    for path in TINY.glob("*.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["evolution"] == training.FORMS[path.stem]
