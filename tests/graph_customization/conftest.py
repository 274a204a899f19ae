"""The exported random Llama, built once for all tests of the graph passes."""

from pathlib import Path

import pytest

from tests.utils.models.small import export, tiny_llama


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """XML file of a random Llama (2 layers, 64 wide, 256 tokens) as a stateful FP16 IR."""
    return export(tiny_llama(), tmp_path_factory.mktemp("llama"))
