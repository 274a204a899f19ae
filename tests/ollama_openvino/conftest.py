"""A server with a toy model, and the folder of the real tiny model."""

from pathlib import Path

import pytest

from tests.ollama_openvino import fakes


@pytest.fixture(scope="session")
def package(tmp_path_factory) -> Path:
    return fakes.toy_package(tmp_path_factory.mktemp("package"))


@pytest.fixture
def app(tmp_path, package):
    """The application with the model `toy`."""
    with fakes.live(tmp_path / "store", running=2, waiting=2) as running:
        fakes.add(running, package)
        yield running
