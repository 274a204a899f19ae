"""A voice of each kind, created and converted once for all tests of this folder, at its first use."""

from pathlib import Path

import pytest

from notebooks.sambert_hifigan.convert import to_ir
from notebooks.sambert_hifigan.pipeline import FP32_PROPERTIES, Synthesizer
from tests.sambert_hifigan.small import Lazy, voice


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """The checkpoint folder of a voice of each kind."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return Lazy(lambda kind: voice(folder / kind, kind))


@pytest.fixture(scope="session")
def irs(checkpoints, tmp_path_factory) -> dict[str, Path]:
    """Their IR folders, weights in FP32."""
    folder = tmp_path_factory.mktemp("irs")
    return Lazy(lambda kind: to_ir(checkpoints[kind], folder / kind, half=False))


@pytest.fixture(scope="session")
def synthesizers(irs) -> dict[str, Synthesizer]:
    return Lazy(lambda kind: Synthesizer(irs[kind], **FP32_PROPERTIES))
