"""Sizes that fit together are found, and the numbers are such as the ports take."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from utils.arm import inputs


def find(model: ov.Model) -> list[np.ndarray]:
    return inputs.reference(model)[0]


def vocoder(factor: int) -> ov.Model:
    """Frames [1, 1, n] repeated `factor` times, plus a source [1, 1, factor * n]."""
    frames, source = ops.parameter([1, 1, -1], np.float32), ops.parameter([1, 1, -1], np.float32)
    repeated = ops.tile(ops.unsqueeze(frames, ops.constant([3])), ops.constant([1, 1, 1, factor]))
    return ov.Model([ops.add(ops.reshape(repeated, ops.constant([1, 1, -1]), False), source)], [frames, source], "up")


def test_a_source_gets_as_many_samples_as_its_frames_have():
    frames, source = find(vocoder(200))
    assert source.shape[2] == 200 * frames.shape[2]


def test_sizes_that_fit_nothing_are_an_error():
    with pytest.raises(ValueError, match="no sizes of its inputs"):
        find(vocoder(7))


def test_a_model_with_a_cache_gets_a_batch_of_two():
    ids, beams = ops.parameter([-1, -1, 3], np.float32), ops.parameter([-1], np.int32)
    beams.output(0).get_tensor().set_names({"beam_idx"})
    shapes = [x.shape for x in find(ov.Model([ops.gather(ids, beams, np.int64(0))], [ids, beams], "rows"))]
    assert shapes == [(2, 12, 3), (2,)]


def test_pixels_of_patches_get_their_width_in_pixels_and_their_batch():
    """Pixels [batch, 3, 14, 14 * n] beside a mask [batch, n]."""
    pixels, mask = ops.parameter([-1, 3, 14, -1], np.float32), ops.parameter([-1, -1], np.float32)
    patches = ops.convolution(pixels, np.ones((4, 3, 14, 14), np.float32), [14, 14], [0, 0], [0, 0], [1, 1])
    features = ops.squeeze(patches, ops.constant([2]))  # [batch, 4, n]
    model = ov.Model([ops.add(features, ops.unsqueeze(mask, ops.constant([1])))], [pixels, mask], "vision")
    assert [x.shape for x in find(model)] == [(2, 3, 14, 168), (2, 12)]


def test_an_empty_output_shows_nothing():
    """The samples of half a frame are none: a length is taken that gives some."""
    x = ops.parameter([1, 1, -1], np.float32)
    kernel = np.ones((1, 1, 64), np.float32)
    frames = ops.convolution(x, kernel, [64], [32], [32], [1])
    assert find(ov.Model([ops.slice(frames, [1], [1000], [1], [2])], [x], "frames"))[0].shape[2] == 64


def test_a_long_sound_is_tried_where_a_short_one_is_too_short():
    x = ops.parameter([1, 1, -1], np.float32)
    kernel = np.ones((1, 1, 400), np.float32)
    model = ov.Model([ops.convolution(x, kernel, [1], [0], [0], [1])], [x], "long")
    assert find(model)[0].shape[2] >= 400


def test_numbers_follow_the_names():
    ports = {"attention_mask": np.int64, "mask": np.float32, "beam_idx": np.int32, "position_ids": np.int64}
    ports |= {"input_ids": np.int64, "x": np.float32, "key_padding_mask": np.float32}
    nodes = {name: ops.parameter([-1] if name == "beam_idx" else [2, -1], kind) for name, kind in ports.items()}
    for name, node in nodes.items():
        node.output(0).get_tensor().set_names({name})
    model = ov.Model([ops.convert(node, "f32") for node in nodes.values()], list(nodes.values()), "ports")
    drawn = dict(zip(ports, next(inputs.candidates(model)), strict=True))
    assert (drawn["attention_mask"] == 1).all() and (drawn["mask"] == 1).all()
    assert (drawn["key_padding_mask"] == 0).all()
    assert drawn["beam_idx"].tolist() == [0, 1] and (drawn["position_ids"] == np.arange(12)).all()
    assert set(drawn["input_ids"].flat) == {1, 2, 3} and 0.1 < drawn["x"].std() < 0.6
    assert all(drawn[name].dtype == kind for name, kind in ports.items())
