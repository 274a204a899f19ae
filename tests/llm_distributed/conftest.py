"""The shares of the small models, made once for all tests of this folder."""

import pytest

from tests.llm_distributed import small


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    return small.checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def shares(llama, tmp_path_factory):
    """A function from a number of ranks to the folders of the small Llama's shares."""
    made = {}

    def of(ranks):
        if ranks not in made:
            made[ranks] = small.shares(llama, ranks, tmp_path_factory.mktemp(f"shares-{ranks}"))
        return made[ranks]

    return of
