"""An exported language model whose attention is written by hand, before and after the pass."""

import numpy as np
import openvino as ov
import pytest

from notebooks.sdpa_enabling import convert
from notebooks.sdpa_enabling.pipeline import WITH_CACHE, fuse_attention, layer_types
from tests.utils.models.small import PRECISE, stateful_logits, tiny_llama, token_ids
from utils.models.llm import Session


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The IR of a random Llama of two layers, which optimum-intel exports."""
    checkpoint, folder = (tmp_path_factory.mktemp(name) for name in ("checkpoint", "ir"))
    tiny_llama().save_pretrained(checkpoint)
    convert.export_by_hand(checkpoint, folder)
    return folder / "openvino_model.xml"


@pytest.mark.filterwarnings("ignore")
def test_every_layer_is_fused_and_the_logits_are_the_same(exported):
    model = ov.Core().read_model(exported)
    before = layer_types(ov.Core().compile_model(model, "CPU", PRECISE))
    ids = token_ids(0, tokens=40, vocabulary=256)
    expected = stateful_logits(exported, ids)
    assert fuse_attention(model).changed == 2
    after = layer_types(ov.Core().compile_model(model, "CPU", PRECISE))
    assert (before["Softmax"], before[WITH_CACHE]) == (2, 0) and (after["Softmax"], after[WITH_CACHE]) == (0, 2)
    assert np.abs(stateful_logits(model, ids) - expected).max() < 1e-4
    assert np.array_equal(*(Session(m, "CPU", **PRECISE).generate(ids, 16) for m in (exported, model)))


def test_the_registered_attention_is_taken_back(exported):
    """Otherwise later exports in this process would be written by hand, too."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert "eager" not in ALL_ATTENTION_FUNCTIONS


@pytest.mark.parametrize(("model", "attention"), [("huge", "fused"), ("tiny", "flash")])
def test_unknown_names_are_errors_that_name_the_known_ones(model, attention):
    with pytest.raises(ValueError, match="Models: tiny, released; attention: by hand, fused"):
        convert.prepare(model, attention)
