"""A small random checkpoint and its IR folder, made once for all tests of this room."""

import sys
from pathlib import Path

import numpy as np
import pytest

from notebooks.gpt_sovits import convert
from tests.gpt_sovits import small, standin


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def ir(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ir")
    convert.to_ir(checkpoint, folder)
    return folder


@pytest.fixture(scope="session")
def voice() -> tuple[np.ndarray, int]:
    """Four seconds that go up and down as speech does, at 16 kHz."""
    rng, time = np.random.default_rng(0), np.arange(4 * 16_000) / 16_000
    tone = sum(np.sin(2 * np.pi * 120 * k * time) / k for k in range(1, 9))
    loud = 0.2 + np.abs(np.sin(2 * np.pi * 3 * time))
    return (0.2 * loud * tone + 0.01 * rng.standard_normal(len(time))).astype(np.float32), 16_000


@pytest.fixture
def frontend(monkeypatch) -> None:
    """The stand-in for the front end."""
    monkeypatch.setitem(sys.modules, "notebooks.gpt_sovits.pipeline.frontend", standin)
