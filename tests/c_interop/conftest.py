"""Small models, written once, and the compiled library."""

import pytest

from notebooks.c_interop import network
from notebooks.c_interop.pipeline import LLM
from tests.c_interop import tools
from tests.c_interop.tools import TEXT


@pytest.fixture(scope="session")
def arithmetic(tmp_path_factory):
    """The folder of the model whose tokens can be computed."""
    return network.save_arithmetic(tmp_path_factory.mktemp("arithmetic") / "model")


@pytest.fixture(scope="session")
def recitation(tmp_path_factory):
    """The folder of the model that says TEXT and ends."""
    tokens = [*TEXT.encode(), network.END]
    return network.save_recitation(tmp_path_factory.mktemp("recitation") / "model", tokens)


@pytest.fixture(scope="session")
def built():
    return tools.built()


@pytest.fixture
def model(arithmetic, built):
    with LLM(arithmetic, built=built) as opened:
        yield opened


@pytest.fixture
def reciter(recitation, built):
    with LLM(recitation, built=built) as opened:
        yield opened
