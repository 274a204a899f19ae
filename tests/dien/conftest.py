"""A random network, converted once for the tests of this notebook."""

from pathlib import Path

import pytest

from notebooks.dien.convert import convert
from notebooks.dien.network import DIEN
from tests.dien.small import network

STEPS = 10


@pytest.fixture(scope="session")
def independent() -> DIEN:
    return network(independent=True)


@pytest.fixture(scope="session")
def ir(independent: DIEN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IR of a network with folded statistics, 10 steps long."""
    return convert(independent, tmp_path_factory.mktemp("independent") / "dien.xml", STEPS)


@pytest.fixture(scope="session")
def reference_ir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IR of a network with batch statistics, as the released checkpoint needs, 10 steps long."""
    return convert(network(), tmp_path_factory.mktemp("reference") / "dien.xml", STEPS)
