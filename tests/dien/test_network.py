"""The network's parts against the formulae, written down once more in numpy."""

import numpy as np
import pytest
import torch

from notebooks.dien.network import CODED, DIEN, EVOLUTIONS, PAPER, Config
from tests.dien.small import SIZES, batch, network, run


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def recur(dien: DIEN, name: str, inputs: np.ndarray, attention: np.ndarray, form: str) -> np.ndarray:
    """The states of TensorFlow's GRU with an attention gate: the reset comes before the matrix product."""
    weights = {key.removeprefix(f"{name}/"): x.numpy() for key, x in dien.state_dict().items() if key.startswith(name)}
    width = inputs.shape[2]
    h, states = np.zeros((len(inputs), width)), []
    for t in range(inputs.shape[1]):
        x, a = inputs[:, t], attention[:, t, None]
        gates = sigmoid(np.concatenate([x, h], 1) @ weights["gates/kernel"] + weights["gates/bias"])
        r, u = gates[:, :width], gates[:, width:]
        c = np.tanh(np.concatenate([x, r * h], 1) @ weights["candidate/kernel"] + weights["candidate/bias"])
        if form == PAPER:
            h = (1 - a * (1 - u)) * h + a * (1 - u) * c
        else:
            h = (1 - a) * u * h + (1 - (1 - a) * u) * c
        states.append(h)
    return np.stack(states, 1)


@pytest.mark.parametrize("form", [CODED, PAPER])
def test_recurrences_are_those_of_the_formula(form):
    dien, lengths = network(evolution=form), [5, 3]
    stages = run(dien, batch(lengths))
    mask = batch(lengths)["mask"][..., None]
    evolved = recur(dien, "dien/gru2", stages["gru1_out"], stages["att_alphas"], form) * mask
    assert np.abs(evolved - stages["gru2_out"]).max() < 1e-5
    assert np.abs(evolved[[0, 1], [4, 2]] - stages["gru2_final"]).max() < 1e-5


def test_the_first_gru_resets_before_the_product():
    dien = network()
    stages = run(dien, batch([6, 2]))
    mask = batch([6, 2])["mask"][..., None]
    attention = np.zeros((2, 6))
    expected = recur(dien, "dien/gru1/gru_cell", stages["item_his_eb"], attention, CODED) * mask
    assert np.abs(expected - stages["gru1_out"]).max() < 1e-5


def test_coded_and_paper_form_differ():
    inputs = batch([6, 4, 2])
    coded, paper = (run(network(evolution=form), inputs)["gru2_final"] for form in (CODED, PAPER))
    assert np.abs(coded - paper).max() > 0.05


def test_attention_stays_inside_the_mask_and_sums_to_one():
    stages = run(network(), batch([5, 3, 1]))
    mask = batch([5, 3, 1])["mask"]
    assert (stages["att_alphas"][mask == 0] == 0).all()
    assert np.abs(stages["att_alphas"].sum(1) - 1).max() < 1e-6
    assert (stages["gru1_out"][mask == 0] == 0).all()


def test_a_score_of_the_independent_form_is_its_rows_own():
    dien, inputs = network(independent=True), batch([4, 7, 2, 1])
    together = run(dien, inputs)["y_hat"]
    for row in range(4):
        alone = {name: x[row : row + 1] for name, x in inputs.items()}
        assert np.abs(run(dien, alone)["y_hat"] - together[row]).max() < 1e-6
    wider = run(dien, batch([4, 7, 2, 1], width=12))["y_hat"]
    assert np.abs(wider - together).max() < 1e-6


def test_a_score_of_the_reference_form_depends_on_batch_and_padding():
    dien, inputs = network(), batch([4, 7, 2, 1])
    together = run(dien, inputs)["dice2"]
    alone = run(dien, {name: x[:1] for name, x in inputs.items()})["dice2"]
    assert np.abs(alone - together[:1]).max() > 1e-3
    assert np.abs(run(dien, batch([4, 7, 2, 1], width=12))["dice2"] - together).max() > 1e-3


@pytest.mark.parametrize("form", EVOLUTIONS)
def test_every_form_learns(form):
    torch.manual_seed(0)
    dien = DIEN(Config(*SIZES, evolution=form, independent=True)).train()
    optimizer = torch.optim.Adam(dien.parameters(), 0.01)
    inputs = {name: torch.from_numpy(x) for name, x in batch([5, 4, 3, 2] * 8).items()}
    target = torch.arange(32) % 2
    losses = []
    for _ in range(15):
        loss = -dien(**inputs)[0][torch.arange(32), target].log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_training_folds_statistics_for_dice():
    dien = DIEN(Config(*SIZES, independent=True)).train()
    before = dien["dien/fcn/dice_1/moving_mean"].clone()
    dien(**{name: torch.from_numpy(x) for name, x in batch([3, 2]).items()})
    assert not torch.equal(before, dien["dien/fcn/dice_1/moving_mean"])
    dien.eval()
    before = dien["dien/fcn/dice_1/moving_mean"].clone()
    dien(**{name: torch.from_numpy(x) for name, x in batch([3, 2]).items()})
    assert torch.equal(before, dien["dien/fcn/dice_1/moving_mean"])


def test_sizes_come_from_the_tensors():
    config = Config(*SIZES, embedding=4, query=5, attention=(6, 3), layers=(9, 8), auxiliary=(7, 2))
    assert Config.of(DIEN(config).state_dict()) == config


def test_missing_keys_are_listed_and_unknown_forms_refused():
    tensors = dict(network().state_dict())
    del tensors["dien/gru2/gates/bias"]
    with pytest.raises(RuntimeError, match="dien/gru2/gates/bias"):
        network().load_state_dict(tensors)
    with pytest.raises(ValueError, match="choose one of coded, paper, gru, sum"):
        Config(*SIZES, evolution="lstm")
