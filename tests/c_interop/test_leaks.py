"""Memory: it does not grow, and the same measurement sees one tensor that is not freed."""

import pytest

from notebooks.c_interop import measuring
from tests.c_interop import tools
from utils import preflight

CYCLES = 20


@pytest.fixture(autouse=True)
def glibc():
    try:
        measuring.allocated_bytes()
    except ValueError as error:
        pytest.skip(str(error))


def grown(built, folder, opening: bool) -> float:
    """Bytes per cycle, the least of three runs in a process of its own.

    A leak shows in each run, and what OpenVINO keeps of its first uses only in some.
    """
    cycles = CYCLES // 4 if opening else CYCLES
    return min(preflight.in_child(measuring.growth, built, folder, "a prompt", cycles, opening))


@pytest.mark.parametrize("opening", [False, True])
def test_memory_does_not_grow(arithmetic, opening):
    assert grown(tools.built(), arithmetic, opening) < measuring.GROWTH_LIMIT_BYTES


def test_a_tensor_that_is_not_freed_is_seen(arithmetic):
    tools.built()
    assert grown(measuring.mistaken("a tensor is not freed"), arithmetic, False) > measuring.GROWTH_LIMIT_BYTES
