"""What a share of a language model needs in its graph, so that all ranks together compute what the whole model does.

A rank has some columns of the matrix behind attention and of the last matrix of the MLP, so its products are summands:
`AllReduce` adds those of all ranks. A rank also has some rows of the embedding: it looks up the tokens it has, takes
zeros for the others, and `AllReduce` adds here, too.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino.passes import AnyInput, Manager, Matcher, MatcherPass, Or, WrapType

from .group import Group, GroupFailed

MODEL_XML = "openvino_model.xml"
DECOMPRESSION = ("Convert", "Subtract", "Multiply", "Reshape")  # between a compressed weight and its product


class AllReduce(ov.Op):
    """The sum of an array over all ranks of `AllReduce.group`; input and output have one shape and type."""

    group: Group | None = None  # of this process

    def __init__(self, inputs=None) -> None:
        super().__init__(self, inputs)

    def validate_and_infer_types(self) -> None:
        self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, inputs) -> AllReduce:
        return AllReduce(inputs)

    def visit_attributes(self, visitor) -> bool:
        return True

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs, inputs) -> bool:
        if outputs[0].shape != inputs[0].shape:  # seldom; setting a shape takes 30 us
            outputs[0].shape = inputs[0].shape
        group = AllReduce.group
        if group.failure is None:
            try:
                outputs[0].data[...] = group.all_reduce(inputs[0].data)
            except GroupFailed as error:  # `Rank` raises it after the inference; OpenVINO would wrap it
                group.failure = error
        return True


class InsertAllReduce(MatcherPass):
    """Puts an AllReduce between a product with weights and the sum that adds it to the residual stream.

    Attention and MLP each end with such a product (`o_proj` and `down_proj`). Other products are followed by a bias, an
    activation or a Reshape. `count` says how many there were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        product = WrapType("opset13.MatMul", [AnyInput(), AnyInput()])
        stream = AnyInput()
        total = Or([WrapType("opset13.Add", [stream, product]), WrapType("opset13.Add", [product, stream])])

        def callback(matcher: Matcher) -> bool:
            matched = matcher.get_pattern_value_map()
            summand = matched[product]
            if not is_weight(summand.get_node().input_value(1)) or is_weight(matched[stream]):
                return False
            add = matcher.get_match_root()
            place = next(port for port in add.inputs() if port.get_source_output() == summand)
            place.replace_source_output(AllReduce([summand]).output(0))
            self.count += 1
            return True

        self.register_matcher(Matcher(total, "InsertAllReduce"), callback)


def is_weight(value: ov.Output) -> bool:
    """Whether a value is a constant, or what decompression makes of one."""
    node = value.get_node()
    while node.get_type_name() in DECOMPRESSION:
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant"


def split_embedding(model: ov.Model, first: int, end: int) -> None:
    """Let the rank with tokens first to end - 1 look up any token: zeros for those of others, then the sum of all.

    Raises ValueError for a model whose embedding does not have that many rows.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Gather" and is_weight(node.input_value(0)):
            shape = node.input_value(0).get_partial_shape()
            if shape.rank.get_length() == 2 and shape[0] == ov.Dimension(end - first):
                break
    else:
        raise ValueError(f"The model has no embedding of {end - first} tokens. Give it the share that it was cut for.")
    ids = node.input_value(1)  # [batch, tokens]
    kind = ids.get_element_type()
    start, size = (ops.constant(np.array(number), kind) for number in (first, end - first))
    local = ops.subtract(ids, start)
    held = ops.logical_and(ops.greater_equal(ids, start), ops.less(local, size))
    node.input(1).replace_source_output(ops.clamp(local, 0, end - first - 1).output(0))
    readers = list(node.output(0).get_target_inputs())
    mask = ops.unsqueeze(ops.convert(held, node.get_output_element_type(0)), -1)  # [batch, tokens, 1]
    whole = AllReduce([ops.multiply(node, mask).output(0)])
    for reader in readers:
        reader.replace_source_output(whole.output(0))


def parallelise(model: ov.Model, first: int, end: int) -> int:
    """Make the share of a language model that holds tokens first to end - 1 compute with the other ranks.

    Its logits are those of its own tokens. Returns the number of AllReduce operations. Raises ValueError where the
    model has no residual stream or no such embedding.
    """
    insertion, manager = InsertAllReduce(), Manager()
    manager.register_pass(insertion)
    manager.run_passes(model)
    if not insertion.count:
        raise ValueError("No product with weights is added to a residual stream. Give a decoder of the Llama family.")
    split_embedding(model, first, end)
    model.validate_nodes_and_infer_types()
    return insertion.count + 1
