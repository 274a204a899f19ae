"""A voice of each kind, made and converted once for all tests of this room."""

from pathlib import Path

import pytest

from notebooks.sambert_hifigan.convert import to_ir
from notebooks.sambert_hifigan.pipeline import Synthesizer
from tests.sambert_hifigan.networks import EXACT, KINDS
from tests.sambert_hifigan.voices import voice


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """The checkpoint folder of a voice of each kind."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {kind: voice(folder / kind, kind) for kind in KINDS}


@pytest.fixture(scope="session")
def irs(checkpoints, tmp_path_factory) -> dict[str, Path]:
    """Their IR folders, weights in FP32."""
    folder = tmp_path_factory.mktemp("irs")
    return {kind: to_ir(checkpoint, folder / kind, half=False) for kind, checkpoint in checkpoints.items()}


@pytest.fixture(scope="session")
def synthesizers(irs) -> dict[str, Synthesizer]:
    return {kind: Synthesizer(ir, **EXACT) for kind, ir in irs.items()}
