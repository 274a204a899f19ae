"""PyTorch and OpenVINO against outputs of the authors' TensorFlow program, wherever ORACLES has them."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from notebooks.dien.convert import convert
from notebooks.dien.network import DIEN, INPUTS, Config
from notebooks.dien.pipeline import ClickModel
from tests.dien.small import EXACT, ragged, run
from tests.oracles import fill
from tests.references import files, sections

FILES = files("dien")
SECTIONS = {"dien_tf"}
OTHERS = {"loss", "aux_loss", "acc", "y_hat_row0_alone"}  # outputs that are no stage of a forward pass
UNUSED = {"noclk_mid", "noclk_cat", "target"}  # inputs of training alone
TOLERANCE = 1e-4


@pytest.fixture(params=FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def oracle(request) -> tuple[DIEN, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(network with the oracle's weights, inputs, outputs)."""
    stored = np.load(request.param)
    arguments = {name: stored[f"in/{name}"] for name in (*INPUTS, *sorted(UNUSED))}
    outputs = {name.removeprefix("out/"): stored[name] for name in stored if name.startswith("out/")}
    assert len(arguments) + len(outputs) == len(stored.files), "there is data that this test does not know"
    return build(request.param), arguments, outputs


@cache
def build(path: Path) -> DIEN:
    assert sections(path) and sections(path).keys() <= SECTIONS, sections(path).keys()
    (entries,) = (section["keys"] for section in sections(path).values())
    tensors = {name: fill.tensorflow(name, e["shape"], e.get("scale", 1.0)) for name, e in entries.items()}
    network = DIEN(Config.of(tensors)).eval()
    network.load_state_dict({name: torch.from_numpy(x) for name, x in tensors.items()})
    return network


def inputs_of(arguments: dict) -> dict[str, np.ndarray]:
    return {name: arguments[name] for name in INPUTS}


def worst(ours, reference) -> float:
    assert np.shape(ours) == np.shape(reference)
    return float(np.abs(np.asarray(ours, np.float64) - reference).max())


def test_there_is_reference_data():
    assert FILES


def test_every_stage_in_pytorch(oracle):
    network, arguments, outputs = oracle
    stages = run(network, inputs_of(arguments))
    assert outputs.keys() <= stages.keys() | OTHERS
    compared = {name: worst(stages[name], reference) for name, reference in outputs.items() if name in stages}
    assert "y_hat" in compared and max(compared.values()) <= TOLERANCE, compared


def test_a_row_alone_has_other_batch_statistics(oracle):
    network, arguments, outputs = oracle
    alone = run(network, {name: x[:1] for name, x in inputs_of(arguments).items()})["y_hat"]
    assert worst(alone, outputs["y_hat_row0_alone"]) <= TOLERANCE


def test_losses(oracle):
    network, arguments, outputs = oracle
    with torch.no_grad():
        stages = network.stages(**{name: torch.from_numpy(x) for name, x in inputs_of(arguments).items()})
        others = network.items(*(torch.from_numpy(arguments[f"noclk_{kind}"][..., 0]) for kind in ("mid", "cat")))
        mask = torch.from_numpy(arguments["mask"])
        auxiliary = network.auxiliary_loss(stages["gru1_out"], stages["item_his_eb"], others, mask).item()
        main = -(stages["y_hat"].log() * torch.from_numpy(arguments["target"])).mean().item()
    assert abs(auxiliary - outputs["aux_loss"]) <= TOLERANCE
    assert abs(main + auxiliary - outputs["loss"]) <= TOLERANCE


def test_openvino(oracle, tmp_path):
    network, arguments, outputs = oracle
    inputs = inputs_of(arguments)
    path = convert(network, tmp_path / "dien.xml", inputs["mid_his"].shape[1])
    model = ClickModel(path, cache=None, **EXACT)
    y_hat, attention = model.infer(inputs)
    assert worst(y_hat, outputs["y_hat"]) <= TOLERANCE
    assert worst(attention, outputs["att_alphas"]) <= TOLERANCE
    alone, _ = model.infer({name: x[:1] for name, x in inputs.items()})
    assert worst(alone, outputs["y_hat_row0_alone"]) <= TOLERANCE


def test_openvino_with_ragged_histories(oracle, tmp_path):
    """The pipeline's reference mode pads to the longest row with item 0, as the authors' evaluation does."""
    network, arguments, _ = oracle
    inputs = inputs_of(arguments)
    padding = 1 - inputs["mask"].astype(int)
    inputs |= {name: inputs[name] * (1 - padding) for name in ("mid_his", "cat_his")}
    path = convert(network, tmp_path / "dien.xml", inputs["mid_his"].shape[1] + 3)
    scores = ClickModel(path, cache=None, **EXACT).score(*ragged(inputs))
    width = inputs["seq_len"].max()
    cut = {name: x[:, :width] if x.ndim == 2 else x for name, x in inputs.items()}
    assert worst(scores, run(network, cut)["y_hat"][:, 0]) <= TOLERANCE
