"""Calls of weight methods run on a small network, and store what they say."""

import numpy as np
import pytest

from notebooks.llm_methods.measuring.weights import permute_scales
from notebooks.llm_methods.pipeline import compress, named
from notebooks.llm_methods.pipeline.compressing import student_t
from tests.llm_methods.small import network, output, samples, types

STORED = {  # method -> the type of some weights
    "FP16": "f32",
    "INT8 asymmetric": "u8",
    "INT8 symmetric": "i8",
    "INT4 asymmetric": "u4",
    "INT4 symmetric": "i4",
    "NF4": "nf4",
    "MXFP4": "f4e2m1",
    "FP8": "f8e4m3",
}


@pytest.mark.parametrize("name", STORED)
def test_weights_are_stored_as_the_method_says(name):
    assert STORED[name] in types(compress(named(name).call, network()))


@pytest.mark.parametrize(("name", "most"), [("INT8 asymmetric", 0.03), ("INT4 asymmetric", 0.3), ("NF4", 0.3)])
def test_the_result_stays_near_and_fewer_bits_are_further(name, most):
    exact = output(network())
    error = np.abs(output(compress(named(name).call, network())) - exact).max() / np.abs(exact).max()
    assert 0 < error < most


def test_a_method_with_data_gets_the_samples():
    model = compress(named("scale estimation").call, network(), samples())
    assert "u4" in types(model)


def test_a_method_with_data_and_no_samples_is_an_error():
    with pytest.raises(ValueError, match="needs samples of text"):
        compress(named("AWQ").call, network())


def test_a_codebook_of_students_t_is_symmetric_enough_and_wider_than_a_normal_one():
    values = student_t()
    assert len(values) == 16 and values.dtype == np.float32
    assert (np.diff(values) > 0).all() and values.max() == 1 and 0 in values
    assert -1 <= values.min() < -0.8
    near = np.abs(values) < 0.5
    assert near.sum() > 8  # more densely near zero than equal steps
    assert np.abs(student_t(1e6)[np.abs(student_t(1e6)) < 0.5]).sum() > np.abs(values[near]).sum() / 2


def test_permuted_scales_change_the_result_and_nothing_else():
    model = compress(named("INT4 asymmetric").call, network())
    exact, before = output(network()), types(model)
    near = np.abs(output(model) - exact).mean()
    assert permute_scales(model) == 3
    assert types(model) == before
    assert np.abs(output(model) - exact).mean() > 1.5 * near
