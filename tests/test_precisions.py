"""What the rooms of several sub-models say to names that they do not know; their conversion is `utils.models.parts`."""

import pytest

from notebooks.gpt_sovits import convert as gpt_sovits
from notebooks.janus_pro import convert as janus_pro
from notebooks.minicpm_v import convert as minicpm_v

MODELS = {
    gpt_sovits: "tiny, released",
    janus_pro: "tiny, released, released-7b",
    minicpm_v: "tiny, released, released-2.6",
}


@pytest.fixture(params=MODELS, ids=["gpt_sovits", "janus_pro", "minicpm_v"])
def convert(request):
    return request.param


def test_unknown_names_are_sentences(convert):
    with pytest.raises(ValueError, match="There is no INT2 of 'tiny'.*precisions: FP16, INT8, INT4"):
        convert.prepare("tiny", "INT2")
    with pytest.raises(ValueError, match=f"There is no FP16 of 'huge'.*Models: {MODELS[convert]};"):
        convert.prepare("huge")


def test_there_is_nothing_to_compress_to_16_bits(convert, tmp_path):
    with pytest.raises(ValueError, match="no precision 'FP16' to compress to"):
        convert.compress(tmp_path, "FP16", 64, tmp_path)
