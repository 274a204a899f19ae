"""Converted small random networks, made once for the tests of this notebook."""

from pathlib import Path

import pytest

from notebooks.wav2lip.convert import convert_expert, convert_generator, quantize
from tests.wav2lip import small


@pytest.fixture(scope="session")
def generator_ir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`wav2lip.xml` of `toy.generator()`."""
    return convert_generator(small.generator(), tmp_path_factory.mktemp("generator") / "wav2lip.xml")


@pytest.fixture(scope="session")
def expert_ir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`syncnet.xml` of `toy.expert()`."""
    return convert_expert(small.expert(), tmp_path_factory.mktemp("expert") / "syncnet.xml")


@pytest.fixture(scope="session")
def int8_ir(generator_ir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in INT8."""
    return quantize(generator_ir, small.CALIBRATION, tmp_path_factory.mktemp("int8") / "wav2lip.xml")
