"""A small random checkpoint and its IR folder, made once for all tests of this room."""

from pathlib import Path

import pytest

from notebooks.gpt_sovits import convert
from tests.gpt_sovits import small


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def ir(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights in FP32."""
    folder = tmp_path_factory.mktemp("ir")
    convert.to_ir(checkpoint, folder, half=False)
    return folder
