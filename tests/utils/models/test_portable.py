"""The three forms that the plugin for ARM computes wrongly: the rewritten graphs give the numbers of plain numpy, on
every processor, and the search finds the forms in graphs."""

import platform

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops
from torch import nn

from utils.arm import sweep
from utils.models import tracing
from utils.models.portable import ATTENTION, TRANSPOSED, lift_transposed_convolutions, wrong_on_arm

FP32 = {"INFERENCE_PRECISION_HINT": "f32"}
LENGTHS = (1, 2, 7, 33)
CASES = [  # kernel, stride, padding, output padding, dilation
    (4, 2, 1, 0, 1),
    (5, 2, 2, 1, 1),
    (3, 1, 0, 0, 1),
    (16, 8, 4, 0, 1),
    (9, 5, 2, 0, 1),
    (3, 3, 1, 2, 2),
    (7, 3, 0, 1, 3),
]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def run(model: ov.Model, *inputs: np.ndarray) -> np.ndarray:
    return ov.Core().compile_model(model, "CPU", FP32)(list(inputs))[0]


def kinds(model: ov.Model) -> list[str]:
    return [node.get_type_name() for node in model.get_ordered_ops()]


def transposed(x: np.ndarray, kernel: np.ndarray, stride: int, padding: int, extra: int, dilation: int) -> np.ndarray:
    """The transposed convolution [batch, outputs, length] of x [batch, inputs, n], kernel [inputs, outputs, size]:
    each x[i] adds the kernel, times itself, at the places that begin at i * stride."""
    n, size = x.shape[2], kernel.shape[2]
    whole = np.zeros((len(x), kernel.shape[1], (n - 1) * stride + dilation * (size - 1) + 1 + extra))
    for i in range(n):
        for k in range(size):
            whole[:, :, i * stride + k * dilation] += np.einsum("bi,io->bo", x[:, :, i], kernel[:, :, k])
    return whole[:, :, padding : whole.shape[2] - padding]


def one_axis(kernel, stride: int, padding: int, extra: int, dilation: int, **options) -> ov.Model:
    """A model of one transposed convolution; options: other arguments of the operation."""
    x = ops.parameter([-1, 6, -1], np.float32)
    sizes = {"pads_begin": [padding], "pads_end": [padding], "dilations": [dilation], "output_padding": [extra]}
    y = ops.convolution_backprop_data(x, kernel, [stride], **(sizes | options))
    y.output(0).get_tensor().set_names({"y"})
    y.set_friendly_name("upsampling")
    return ov.Model([y], [x], "one axis")


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_lifted_convolution_is_the_sum_that_defines_it(case):
    kernel = drawn(6, 5, case[0])
    model = one_axis(kernel, *case[1:])
    assert wrong_on_arm(model) == ["upsampling"]
    assert lift_transposed_convolutions(model) is model and not wrong_on_arm(model)
    for length in LENGTHS:
        x = drawn(2, 6, length)
        expected = transposed(x, kernel, *case[1:])
        found = run(model, x)
        assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-5
        backwards = transposed(x, kernel[:, :, ::-1], *case[1:])
        assert np.abs(found - backwards).max() > 0.1  # what ARM computes of the convolution along one axis


@torch.inference_mode()
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_lifted_layer_is_pytorch_s(case):
    size, stride, padding, extra, dilation = case
    torch.manual_seed(0)
    layer = nn.ConvTranspose1d(6, 9, size, stride, padding, extra, dilation=dilation)
    model = tracing.trace(layer, {"x": torch.zeros(1, 6, 5)}, [[-1, 6, -1]], ["y"])
    assert len(wrong_on_arm(model)) == 1
    lift_transposed_convolutions(model)
    assert not wrong_on_arm(model) and model.output("y").get_partial_shape().rank.get_length() == 3
    for length in LENGTHS:
        x = torch.from_numpy(drawn(2, 6, length))
        assert np.abs(run(model, x.numpy()) - layer(x).numpy()).max() < 1e-5


def test_names_stay_and_a_constant_kernel_stays_a_constant():
    model = lift_transposed_convolutions(one_axis(drawn(6, 5, 4), 2, 1, 0, 1))
    assert model.output("y").get_node().input_value(0).get_node().get_type_name() == "Squeeze"
    (wide,) = (node for node in model.get_ops() if node.get_type_name() == TRANSPOSED)
    assert wide.get_friendly_name() == "upsampling"
    assert wide.input_value(1).get_node().get_type_name() == "Constant"
    assert wide.input_value(1).get_shape() == [6, 5, 1, 4]


def test_a_kernel_in_16_bits_keeps_its_bits():
    kernel = drawn(6, 5, 4).astype(np.float16)
    model = one_axis(ops.convert(ops.constant(kernel), "f32"), 2, 1, 0, 1)
    lift_transposed_convolutions(model)
    x = drawn(1, 6, 5)
    assert np.abs(run(model, x) - transposed(x, kernel.astype(np.float32), 2, 1, 0, 1)).max() < 1e-5


def test_a_given_output_length_is_kept():
    kernel, x = drawn(6, 5, 4), drawn(1, 6, 5)
    model = one_axis(kernel, 2, 0, 0, 1, output_shape=ops.constant(np.int64([11])), auto_pad="same_upper")
    expected = transposed(x, kernel, 2, 0, 0, 1)[:, :, 1:]  # without the first of 12
    found = run(lift_transposed_convolutions(model), x)
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-5


def test_two_axes_stay_as_they_are():
    x = ops.parameter([1, 6, 4, -1], np.float32)
    y = ops.convolution_backprop_data(x, drawn(6, 5, 2, 2), [2, 2])
    model = ov.Model([y], [x], "two axes")
    before = kinds(model)
    assert kinds(lift_transposed_convolutions(model)) == before and not wrong_on_arm(model)


def masked(form: str) -> ov.Model:
    """x [n, 4], where the first of a row is positive, in two forms that differ on ARM."""
    x = ops.parameter([-1, 4], np.float32)
    given = ops.greater(ops.gather(x, ops.constant([0]), ops.constant(1)), np.float32(0))  # [n, 1]
    if form == "convert":
        y = ops.multiply(x, ops.convert(given, "f32"))
    elif form == "sum":
        y = ops.add(x, ops.convert(given, "f32"))
    elif form == "convert, then reshape":
        flat = ops.squeeze(given, ops.constant([1]))
        y = ops.multiply(ops.unsqueeze(ops.convert(flat, "f32"), ops.constant([1])), x)
    else:
        y = ops.select(given, x, np.float32(0))
    return ov.Model([y], [x], form)


def test_a_choice_is_what_a_product_with_a_boolean_should_be():
    x = drawn(37, 4)
    expected = np.where(x[:, :1] > 0, x, 0)
    assert np.abs(expected - np.round(expected)).max() > 0.4  # what ARM computes of the product
    assert (run(masked("select"), x) == expected).all()


def test_products_with_booleans_are_found():
    for form in ("convert", "convert, then reshape", "sum"):
        assert len(wrong_on_arm(masked(form))) == 1
    assert wrong_on_arm(masked("select")) == []
    rows_given = masked("convert")
    rows_given.reshape([4, 4])
    assert wrong_on_arm(rows_given) == []  # OpenVINO compiles a static shape into one right operation


def attended(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Attention of queries, keys and values [batch, heads, tokens, 16] with a mask that is added to the scores."""
    scores = query @ key.swapaxes(2, 3) / 4 + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ value


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_with_a_mask_for_each_row_attention_is_the_sum_that_defines_it(batch):
    """Two calls, the second of which reads the cache of the first."""
    settings = FP32 | {"KV_CACHE_PRECISION": "f32"}
    request = ov.Core().compile_model(sweep.attention(-1), "CPU", settings).create_infer_request()
    query, key, value = (drawn(batch, 2, 9, 16) for _ in range(3))
    hidden = np.triu(np.full((9, 9), -10_000, np.float32), 1)
    expected = attended(query, key, value, hidden)
    for begin, end in ((0, 5), (5, 9)):
        new = [one[:, :, begin:end] for one in (query, key, value)]
        mask = np.broadcast_to(hidden[begin:end, :end], (batch, 1, end - begin, end))
        found = request.infer([*new, mask, np.arange(batch, dtype=np.int32)])[0]
        assert np.abs(found - expected[:, :, begin:end]).max() < 1e-5


@pytest.mark.parametrize(("precision", "capability"), [("bf16", "BF16"), ("f16", "FP16")])
def test_x86_is_wrong_too_where_rows_share_a_mask(precision, capability):
    """Of a shared mask, what is read for the second row lies behind it: any numbers, or none."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not is_x86 or capability not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip(f"no x86 processor with arithmetic in {precision}")
    settings = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": "f32"}
    tokens, rows = [drawn(2, 2, 40, 16) for _ in range(3)], np.arange(2, dtype=np.int32)
    hidden = np.triu(np.full((1, 1, 40, 40), -10_000, np.float32), 1)
    expected = attended(*tokens, hidden)
    off = {}
    for first_axis in (1, -1):
        mask = hidden if first_axis == 1 else np.repeat(hidden, 2, axis=0)
        compiled = ov.Core().compile_model(sweep.attention(first_axis), "CPU", settings)
        off[first_axis] = np.abs(compiled([*tokens, mask, rows])[0] - expected).max((1, 2, 3))
    assert off[-1].max() < 0.05 and off[1][0] < 0.05 and not off[1][1] < 0.05


def test_attention_whose_rows_share_a_mask_is_found():
    shared = sweep.attention(1)
    (attention,) = (node for node in shared.get_ops() if node.get_type_name() == ATTENTION)
    assert wrong_on_arm(shared) == [attention.get_friendly_name()] and wrong_on_arm(sweep.attention(-1)) == []


def test_attention_of_one_row_or_without_a_cache_or_a_mask_is_right():
    inputs = [ops.parameter([-1, 2, -1, 16], np.float32) for _ in range(3)]
    mask = ops.parameter([1, 1, -1, -1], np.float32)
    assert not wrong_on_arm(ov.Model([ops.scaled_dot_product_attention(*inputs, mask)], [*inputs, mask], "no cache"))
    one_row = sweep.attention(1)
    one_row.reshape({i: [1, 2, -1, 16] for i in range(3)} | {"beam_idx": [1]})
    assert wrong_on_arm(one_row) == []
    causal = sweep.attention(1)
    (attention,) = (node for node in causal.get_ops() if node.get_type_name() == ATTENTION)
    without = ops.scaled_dot_product_attention(*attention.input_values()[:3], causal=True)
    attention.output(0).replace(without.output(0))
    assert wrong_on_arm(causal) == []


def test_loops_are_searched():
    body = masked("convert")
    condition = ops.constant(np.array(True))
    loop = ops.loop(ops.constant(3).output(0), condition.output(0))
    results = [ops.result(condition), *body.get_results()]
    loop.set_function(ov.Model(results, body.get_parameters(), "body"))
    loop.set_special_body_ports([-1, 0])
    x = ops.parameter([-1, 4], np.float32)
    loop.set_invariant_input(body.get_parameters()[0], x.output(0))
    found = loop.get_iter_value(loop.get_function().get_results()[1].input_value(0), -1)
    assert len(wrong_on_arm(ov.Model([found], [x], "loop"))) == 1
