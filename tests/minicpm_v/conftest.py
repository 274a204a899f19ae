"""Small random checkpoints and their IR folders, made once for the tests of this notebook."""

from pathlib import Path

import pytest
import torch

from notebooks.minicpm_v import convert
from tests.minicpm_v import small


@pytest.fixture(scope="session")
def checkpoint_2_6(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.checkpoint(tmp_path_factory.mktemp("checkpoint"), 2.6, torch.float16)


@pytest.fixture(scope="session")
def checkpoint_2_0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.checkpoint(tmp_path_factory.mktemp("checkpoint"), 2.0, torch.float16)


@pytest.fixture(scope="session")
def ir_2_6(checkpoint_2_6: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ir")
    convert.to_ir(checkpoint_2_6, folder)
    return folder


@pytest.fixture(scope="session")
def ir_2_0(checkpoint_2_0: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ir")
    convert.to_ir(checkpoint_2_0, folder)
    return folder


@pytest.fixture(params=["2_6", "2_0"])
def both(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """Checkpoint and IR folder of either version."""
    return request.getfixturevalue(f"checkpoint_{request.param}"), request.getfixturevalue(f"ir_{request.param}")
