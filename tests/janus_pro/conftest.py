"""Small random checkpoints and their IR folder, made once for the tests of this notebook."""

from pathlib import Path

import pytest
import torch
from transformers import JanusForConditionalGeneration

from notebooks.janus_pro import convert, network
from notebooks.janus_pro.pipeline import Janus
from tests.janus_pro import small
from utils.models.llm import FP32_PROPERTIES


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> JanusForConditionalGeneration:
    return network.load(checkpoint, dtype=torch.float32)


@pytest.fixture(scope="session")
def ir(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ir")
    convert.to_ir(checkpoint, folder)
    return folder


@pytest.fixture(scope="session")
def janus(ir: Path) -> Janus:
    return Janus(ir, **FP32_PROPERTIES)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small tower and autoencoder have names in the authors' config.json."""
    monkeypatch.setitem(network.TOWERS, "small", small.TOWER)
    monkeypatch.setitem(network.AUTOENCODERS, "small", small.AUTOENCODER)
