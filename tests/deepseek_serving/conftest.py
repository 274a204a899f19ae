"""Repositories for the tests of the server: one without a model, and one of the real tiny model."""

from pathlib import Path

import pytest

from notebooks.deepseek_serving.server import repository
from tests.deepseek_serving.fakes import live, toy_ir


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A repository with all files but without a real model, and with a batch of two sequences."""
    ir = toy_ir(tmp_path / "ir")
    return repository.write(tmp_path / "toy", "toy", ir, max_num_seqs=2, max_tokens_limit=400)


@pytest.fixture
def app(toy: Path):
    """The application with the toy repository; two more requests may wait."""
    with live(toy, waiting=2) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    """The same application for all tests of a module that do not change it."""
    folder = tmp_path_factory.mktemp("shared")
    ir = toy_ir(folder / "ir")
    with live(repository.write(folder / "toy", "toy", ir, max_num_seqs=2, max_tokens_limit=400), waiting=2) as running:
        yield running


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of the real tiny model, served as `smollm2`."""
    from notebooks.deepseek_serving import convert

    return repository.write(tmp_path_factory.mktemp("tiny") / "repository", "smollm2", convert.prepare("tiny", "INT4"))
