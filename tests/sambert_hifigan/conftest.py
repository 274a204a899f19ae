"""A voice of each kind, made and converted once for all tests of this room, when the first of them wants it."""

from pathlib import Path

import pytest

from notebooks.sambert_hifigan.convert import to_ir
from notebooks.sambert_hifigan.pipeline import Synthesizer
from tests.sambert_hifigan.networks import EXACT
from tests.sambert_hifigan.voices import Made, voice


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """The checkpoint folder of a voice of each kind."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return Made(lambda kind: voice(folder / kind, kind))


@pytest.fixture(scope="session")
def irs(checkpoints, tmp_path_factory) -> dict[str, Path]:
    """Their IR folders, weights in FP32."""
    folder = tmp_path_factory.mktemp("irs")
    return Made(lambda kind: to_ir(checkpoints[kind], folder / kind, half=False))


@pytest.fixture(scope="session")
def synthesizers(irs) -> dict[str, Synthesizer]:
    return Made(lambda kind: Synthesizer(irs[kind], **EXACT))
