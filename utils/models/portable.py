"""Graphs that compute the same on every processor: OpenVINO's plugin for ARM computes three forms wrongly.

OpenVINO 2026.4.1 on an emulated ARM processor uses the kernel of a transposed convolution along one axis backwards. It
computes a product or a sum in 8 bits where shapes are dynamic and one operand is a converted boolean. In attention
that reads its cache, all rows of a batch but the first are wrong if they share one mask; in BF16 and FP16, so they are
on x86. None of these raises an error. `torch.where` takes the place of such a product, and a mask for each row that of
a shared one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openvino as ov
from openvino import opset13 as ops

TRANSPOSED = "ConvolutionBackpropData"  # without groups; with groups, the plugin is right
COMMUTATIVE = ("Add", "Maximum", "Minimum", "Multiply")
ATTENTION = "ScaledDotProductAttention"
OF_A_CACHE = ("Broadcast", "Concat", "Gather", "Multiply", "Reshape", "Transpose", "Unsqueeze")  # from it to attention
SAME_VALUES = ("Broadcast", "Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze")  # of their first input


def lift_transposed_convolutions(model: ov.Model) -> ov.Model:
    """Let each transposed convolution along one axis run along two, the first of size 1. Changes and returns the model.

    The result is the same on every processor; on ARM it becomes right.
    """
    for node in model.get_ordered_ops():
        if _runs_along_one_axis(node):
            data, kernel, *output_shape = node.input_values()
            attributes = node.get_attributes()
            pairs = {name: [0, *attributes[name]] for name in ("pads_begin", "pads_end", "output_padding")}
            pairs |= {name: [1, *attributes[name]] for name in ("strides", "dilations")}
            if output_shape:
                pairs["output_shape"] = ops.concat([ops.constant([1]), output_shape[0]], 0)
            wide = ops.convolution_backprop_data(
                _unsqueezed(data), _unsqueezed(kernel), auto_pad=attributes["auto_pad"], **pairs
            )
            wide.set_friendly_name(node.get_friendly_name())
            node.output(0).replace(ops.squeeze(wide, ops.constant([2])).output(0))  # [batch, channels, n]
    model.validate_nodes_and_infer_types()
    return model


def wrong_on_arm(model: ov.Model) -> list[str]:
    """The names of the operations in forms that the plugin for ARM computes wrongly, those in loops included."""
    forms = (_runs_along_one_axis, _is_masked, _rows_share_a_mask)
    return [node.get_friendly_name() for node in _operations(model) if any(form(node) for form in forms)]


def _runs_along_one_axis(node: ov.Node) -> bool:
    return node.get_type_name() == TRANSPOSED and len(node.get_attributes()["strides"]) == 1


def _is_masked(node: ov.Node) -> bool:
    """Whether a node is a product, or its like, of a dynamic shape with a converted boolean."""
    real = node.get_output_element_type(0).is_real()  # lengths are integers, and are not computed in 8 bits
    if not real or node.get_type_name() not in COMMUTATIVE or node.get_output_partial_shape(0).is_static:
        return False
    return any(map(_is_converted_boolean, node.input_values()))


def _is_converted_boolean(value: ov.Output) -> bool:
    node = value.get_node()
    while node.get_type_name() in SAME_VALUES:
        value = node.input_value(0)
        if node.get_type_name() == "Convert" and value.get_element_type() == ov.Type.boolean:
            return True
        node = value.get_node()
    return False


def _rows_share_a_mask(node: ov.Node) -> bool:
    """Whether a node is attention that reads its cache, and has one mask for all rows of a batch."""
    if node.get_type_name() != ATTENTION or node.get_input_size() < 4 or node.get_attributes()["causal"]:
        return False
    one, rows, mask = ov.Dimension(1), node.get_input_partial_shape(0)[0], node.get_input_partial_shape(3)
    shared = mask.rank in (ov.Dimension(2), ov.Dimension(3)) or mask.rank == ov.Dimension(4) and mask[0] == one
    return shared and rows != one and _is_state(node.input_value(1))


def _is_state(keys: ov.Output) -> bool:
    """Whether keys are the state of the model, possibly lengthened, selected or repeated."""
    node = keys.get_node()
    inputs = node.input_values() if node.get_type_name() in OF_A_CACHE else ()
    return node.get_type_name() == "ReadValue" or any(map(_is_state, inputs))


def _unsqueezed(value: ov.Output) -> ov.Node:
    """The value with a third axis of size 1; a constant stays one, so that NNCF and the plugin see weights."""
    node = value.get_node()
    if node.get_type_name() == "Constant":
        return ops.constant(np.expand_dims(node.data, 2))
    return ops.unsqueeze(value, ops.constant([2]))


def _operations(model: ov.Model) -> Iterator[ov.Node]:
    """All operations of a model and of the bodies of its loops."""
    for node in model.get_ordered_ops():
        yield node
        if node.get_type_name() in ("Loop", "TensorIterator"):
            yield from _operations(node.get_function())
