"""Models of several sub-models, which `utils.models.parts` converts: unknown names raise errors that name the known."""

import importlib
import re

import pytest

from utils import sources
from utils.paths import ROOT

CASES = sorted(path.parent.name for path in ROOT.glob("notebooks/*/*.ipynb"))
OF_PARTS = [case for case in CASES if "utils.models.parts" in sources.imported(f"notebooks.{case}.convert")]


@pytest.fixture(params=OF_PARTS)
def convert(request):
    return importlib.import_module(f"notebooks.{request.param}.convert")


def test_there_are_models_of_parts():
    assert len(OF_PARTS) >= 3


def test_an_error_names_the_models_and_precisions_that_there_are(convert):
    models = re.escape(", ".join(convert.MODELS))
    assert {"tiny", "released"} <= set(convert.MODELS)
    with pytest.raises(ValueError, match="There is no INT2 of 'tiny'.*precisions: FP16, INT8, INT4"):
        convert.prepare("tiny", "INT2")
    with pytest.raises(ValueError, match=f"There is no FP16 of 'huge'.*Models: {models};"):
        convert.prepare("huge")


def test_there_is_nothing_to_compress_to_16_bits(convert, tmp_path):
    with pytest.raises(ValueError, match="no precision 'FP16' to compress to"):
        convert.compress(tmp_path, "FP16", 64, tmp_path)
