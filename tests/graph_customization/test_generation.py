"""Customized models generate the same tokens as the exported model."""

import numpy as np
import openvino as ov
import pytest

from notebooks.graph_customization.pipeline import InsertSlice, SelectGreedy, customize
from tests.utils.models.small import PRECISE, stateful_model, token_ids
from utils.models.llm import Session

VOCABULARY = 256


@pytest.fixture(scope="module", params=["toy", "llama"])
def model(request):
    """A hand-made stateful model, and an exported one with a real KV cache (asked for only when its turn comes)."""
    if request.param == "toy":
        return stateful_model(vocabulary=VOCABULARY)
    return ov.Core().read_model(request.getfixturevalue("llama"))


@pytest.mark.parametrize("passes", [[InsertSlice], [SelectGreedy], [InsertSlice, SelectGreedy]], ids=str)
def test_customized_models_generate_the_same_tokens(model, passes):
    customized = model.clone()
    customize(customized, [one() for one in passes])
    prompt = token_ids(8, 2, 6, VOCABULARY)
    expected = Session(model, **PRECISE).generate(prompt, 12)
    np.testing.assert_array_equal(Session(customized, **PRECISE).generate(prompt, 12), expected)
