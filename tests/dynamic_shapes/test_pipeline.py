"""Buckets are the best ones; the runner returns what the model returns alone, for many threads, within its memory."""

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from notebooks.dynamic_shapes.convert import to_ir
from notebooks.dynamic_shapes.pipeline import Bucketed, choose_buckets, padding_share

FP32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture(scope="module")
def model() -> ov.Model:
    return to_ir("vocoder")


def frames(n: int, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((batch, n, 256), np.float32)


def alone(model: ov.Model, x: np.ndarray) -> np.ndarray:
    compiled = ov.Core().compile_model(model, "CPU", FP32)
    return compiled({"x": x, "mask": np.ones(x.shape[:2], np.float32)})[0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_other_buckets_waste_less(seed, count):
    lengths = np.random.default_rng(seed).integers(1, 13, 30)
    best = min(padding_share(lengths, [*rest, 15]) for rest in combinations(range(1, 15), count - 1))
    chosen = choose_buckets(lengths, count, longest=15)
    assert len(chosen) == count and chosen[-1] == 15
    assert padding_share(lengths, chosen) == pytest.approx(best)


def test_as_many_buckets_as_lengths_waste_nothing():
    assert choose_buckets([3, 7, 7, 5], 9) == [3, 5, 7]
    assert padding_share([3, 7, 7, 5], [3, 5, 7]) == 0
    assert padding_share([3, 7], [10]) == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 2), "at least one length"),
        (([0, 3], 2), "each from 1 to 3"),
        (([5], 2, 4), "each from 1 to 4"),
        (([5], 0), "at least 1"),
    ],
)
def test_bad_samples_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        choose_buckets(*arguments)


def test_a_length_above_all_buckets_is_an_error():
    with pytest.raises(ValueError, match="No bucket holds the length 9"):
        padding_share([9], [4])


@pytest.mark.parametrize("static", [False, True])
def test_results_are_those_of_the_model_alone(model, static):
    runner = Bucketed(model, [8, 32], mask="mask", static=static, properties=FP32)
    for n, batch in ((1, 1), (8, 1), (9, 2), (32, 1)):
        x = frames(n, batch)
        assert runner({"x": x})[0] == pytest.approx(alone(model, x), abs=1e-5)
    usage = runner.usage()
    assert (usage.requests, usage.hits) == (4, 1)
    assert usage.compiled == (3 if static else 1)
    assert (usage.length, usage.computed_length) == (50, 80)
    assert usage.padding == pytest.approx(30 / 80)
    assert "2 padded to 8, 2 padded to 32" in str(usage)


def test_a_result_that_is_no_multiple_of_the_length_is_refused():
    x = ops.parameter([-1, 2, -1], np.float32, name="x")
    kernel = np.ones((2, 2, 3), np.float32)
    halved = ov.Model([ops.convolution(x, kernel, [2], [1], [1], [1])], [x], "halved")
    assert halved.output(0).get_partial_shape()[2].is_dynamic
    runner = Bucketed(halved, [8], axis=2, properties=FP32)
    with pytest.raises(ValueError, match="the length 4 in the bucket of 8, which is no multiple of it"):
        runner({"x": np.ones((1, 2, 5), np.float32)})


def test_a_forgotten_batch_and_a_negative_axis_are_errors(model):
    with pytest.raises(ValueError, match="x has 2 dimensions, and the model takes 3. Add the batch"):
        Bucketed(model, [8], mask="mask", properties=FP32)({"x": frames(5, 1)[0]})
    with pytest.raises(ValueError, match="The axis is -1. Count it from the front"):
        Bucketed(model, [8], axis=-1)
    with pytest.raises(ValueError, match="There are no lengths"):
        padding_share([], [8])


def test_the_least_recently_used_model_is_dropped(model):
    runner = Bucketed(model, [8, 16, 32], mask="mask", static=True, properties=FP32)
    runner({"x": frames(8)})
    one = runner.models_mb()
    runner = Bucketed(model, [8, 16, 32], mask="mask", static=True, memory_mb=4.5 * one, properties=FP32)
    for n in (8, 16, 8, 32, 8, 16):
        runner({"x": frames(n)})
    usage = runner.usage()
    assert usage.evicted >= 1 and runner.models_mb() <= 4.5 * one
    assert usage.compiled == usage.requests - usage.hits


def test_warm_up_prepares_all_buckets_and_counts_no_request(model):
    runner = Bucketed(model, [8, 16], mask="mask", static=True, properties=FP32)
    runner.warm_up({"x": frames(3)})
    assert (runner.usage().requests, runner.usage().compiled) == (0, 2)
    runner({"x": frames(5)})
    assert (runner.usage().requests, runner.usage().hits) == (1, 1)


@pytest.mark.parametrize("static", [False, True])
def test_threads_share_a_runner(model, static):
    runner = Bucketed(model, [8, 32], mask="mask", static=static, properties=FP32)
    lengths = [3, 30, 8, 17] * 6
    expected = {n: alone(model, frames(n)) for n in set(lengths)}
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: runner({"x": frames(n)})[0], lengths))
    assert all(y == pytest.approx(expected[n], abs=1e-5) for n, y in zip(lengths, results, strict=True))
    assert runner.usage().requests == 24 and runner.usage().compiled == (2 if static else 1)


def test_padding_has_the_value_that_is_asked_for():
    x = ov.opset13.parameter([-1, -1], np.int64, name="ids")
    total = ov.opset13.reduce_sum(x, [1], True)
    model = ov.Model([ov.opset13.add(x, total)], [x])
    runner = Bucketed(model, [4], pad_values={"ids": 7})
    assert runner({"ids": np.array([[1, 2]])})[0].tolist() == [[18, 19]]  # 1 + 2 + 7 + 7


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "Give: x"),
        ({"x": np.zeros((1, 3, 256)), "z": np.zeros(1)}, "Give: x"),
        ({"x": np.zeros((1, 33, 256))}, "The length 33 is above the last bucket, 32"),
        ({"x": np.zeros((1, 0, 256))}, "at least 1"),
        ({"x": np.zeros((1, 3, 256)), "mask": np.ones((1, 4))}, "Give inputs of one length"),
    ],
)
def test_bad_requests_are_errors(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        Bucketed(model, [8, 32], mask="mask")(inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": []}, "Give at least one length"),
        ({"buckets": [0, 3]}, "each at least 1"),
        ({"buckets": [3], "mask": "none"}, "'none' is no input with a length. There are: x, mask"),
        ({"buckets": [3], "pad_values": {"y": 1}}, "'y' is no input with a length"),
        ({"buckets": [3], "axis": 2}, "No input of the model is dynamic along axis 2"),
    ],
)
def test_bad_options_are_errors(model, options, message):
    with pytest.raises(ValueError, match=message):
        Bucketed(model, **options)


@pytest.mark.parametrize("static", [False, True])
def test_it_runs_on_every_device(model, device, static):
    runner = Bucketed(model, [8], mask="mask", static=static, device=device, properties=FP32)
    assert runner({"x": frames(5)})[0].shape == (1, 5 * 64)
