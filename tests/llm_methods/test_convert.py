"""The models of the guide: what a compression costs is stored, and what shapes it is nothing that only measures."""

import pytest

from notebooks.llm_methods import convert
from notebooks.llm_methods.pipeline import named
from utils import sources


def test_a_compressed_model_says_what_it_cost():
    method = named("INT8 asymmetric")
    cost = convert.cost(convert.prepare("tiny", method.call, method.name))
    assert cost["seconds"] > 0 and cost["peak_mb"] > 100
    assert convert.cost(convert.prepare("tiny")) == {}


def test_measuring_and_the_list_of_methods_shape_no_compressed_model():
    """A change of them would compress all methods anew, which takes an hour."""
    reached = sources.reachable(convert.write_compressed.__module__)
    assert "notebooks.llm_methods.pipeline.compressing" in reached
    assert not reached & {"utils.bench", "notebooks.llm_methods.pipeline.methods", "notebooks.llm_methods.convert"}


@pytest.mark.parametrize("share", [0.0, 1.5, -1.0])
def test_a_draft_of_no_layers_is_an_error(share, tmp_path):
    with pytest.raises(ValueError, match="Choose a number from 0 to 1"):
        convert.write_draft(tmp_path, share, tmp_path / "out")


def test_an_unknown_model_is_an_error():
    with pytest.raises(ValueError, match="There is no model 'huge'. Models: tiny, released"):
        convert.prepare("huge")
