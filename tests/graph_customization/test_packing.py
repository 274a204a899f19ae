"""4-bit numbers: packing, and that OpenVINO reads from the packed bytes what was put in."""

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from notebooks.graph_customization.pipeline import make_constant, pack_u4, read_constant, unpack_u4
from tests.utils.models.small import PRECISE

KINDS = {
    "u4": (ov.Type.u4, np.uint8, st.integers(0, 15)),
    "i4": (ov.Type.i4, np.int8, st.integers(-8, 7)),
}


def as_openvino_reads(constant: ov.Node) -> np.ndarray:
    model = ov.Model([ops.convert(constant, "f32")], [])
    return ov.Core().compile_model(model, "CPU", PRECISE)([])[0]


@given(arrays.arrays(np.uint8, arrays.array_shapes(max_dims=4, max_side=6), elements=st.integers(0, 15)))
def test_unpacking_undoes_packing(values):
    values = np.repeat(values, 2, -1) if values.shape[-1] % 2 else values
    packed = pack_u4(values)
    assert packed.dtype == np.uint8 and packed.shape == (*values.shape[:-1], values.shape[-1] // 2)
    np.testing.assert_array_equal(unpack_u4(packed), values)


@given(arrays.arrays(np.uint8, arrays.array_shapes(max_dims=3, max_side=6)))
def test_packing_undoes_unpacking(packed):
    np.testing.assert_array_equal(pack_u4(unpack_u4(packed)), packed)


def test_the_first_of_two_numbers_is_the_low_nibble():
    packed = pack_u4(np.array([[1, 2, 3, 4], [15, 0, 0, 15]], np.uint8))
    np.testing.assert_array_equal(packed, [[0x21, 0x43], [0x0F, 0xF0]])
    np.testing.assert_array_equal(unpack_u4(packed), [[1, 2, 3, 4], [15, 0, 0, 15]])


@settings(max_examples=15, deadline=None)
@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 4), st.sampled_from([2, 4, 6])), elements=st.integers(0, 15)))
def test_openvino_reads_packed_bytes_as_the_same_numbers(values):
    tensor = ov.Tensor(pack_u4(values), list(values.shape), ov.Type.u4)
    np.testing.assert_array_equal(as_openvino_reads(ops.constant(tensor)), values)


@settings(max_examples=15, deadline=None)
@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_constants_hold_what_they_were_made_from(data, name):
    kind, dtype, numbers = KINDS[name]
    values = data.draw(arrays.arrays(dtype, arrays.array_shapes(max_dims=3, max_side=5), elements=numbers))
    constant = make_constant(values, kind)
    assert constant.get_element_type() == kind and tuple(constant.get_output_shape(0)) == values.shape
    back = read_constant(constant)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, values)
    np.testing.assert_array_equal(as_openvino_reads(constant), values)


@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_constants_that_openvino_packed_itself_are_read(data, name):
    kind, dtype, numbers = KINDS[name]
    values = data.draw(arrays.arrays(dtype, arrays.array_shapes(max_dims=3, max_side=5), elements=numbers))
    np.testing.assert_array_equal(read_constant(ops.constant(values, kind)), values)


@pytest.mark.parametrize("name", KINDS)
def test_every_4_bit_number_in_an_odd_count(name):
    kind, dtype, _ = KINDS[name]
    low = 0 if name == "u4" else -8
    values = np.append(np.arange(low, low + 16), low).astype(dtype)
    constant = make_constant(values, kind)
    np.testing.assert_array_equal(read_constant(constant), values)
    np.testing.assert_array_equal(as_openvino_reads(constant), values)


def test_other_types_pass_through():
    values = np.array([[1.5, -2.0]], np.float32)
    constant = make_constant(values, ov.Type.f16)
    assert constant.get_element_type() == ov.Type.f16
    np.testing.assert_array_equal(read_constant(constant), values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(4, np.int8), "takes uint8, not int8"),
        (np.zeros(4), "takes uint8, not float64"),
        (np.zeros((2, 3), np.uint8), r"must be even, not shape \(2, 3\)"),
        (np.uint8(3), r"must be even, not shape \(\)"),
        (np.array([0, 16], np.uint8), "from 0 to 15; the largest here is 16"),
    ],
)
def test_what_cannot_be_packed_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        pack_u4(values)


@pytest.mark.parametrize(
    ("packed", "message"), [(np.zeros(2, np.int8), "not int8"), (np.uint8(1), "at least one axis")]
)
def test_what_cannot_be_unpacked_is_refused(packed, message):
    with pytest.raises(ValueError, match=message):
        unpack_u4(packed)


def test_packing_nothing_gives_nothing():
    assert pack_u4(np.zeros((3, 0), np.uint8)).shape == (3, 0)
    assert unpack_u4(np.zeros((3, 0), np.uint8)).shape == (3, 0)
