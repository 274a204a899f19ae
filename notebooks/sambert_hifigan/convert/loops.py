"""A model of one step becomes a model of all steps: the loop is in the graph, and nothing comes out in between."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops


def inside(step: ov.Model) -> tuple[dict[str, ov.Node], list[ov.Output]]:
    """A step's parameters by name, and what its results hold, to be put into a loop."""
    return {x.output(0).any_name: x for x in step.get_parameters()}, [x.input_value(0) for x in step.get_results()]


def looped(
    inner: dict[str, ov.Node],
    name: str,
    made: ov.Output,
    sliced: dict[str, ov.Node],
    whole: dict[str, ov.Node],
    states: dict[str, ov.Output],
    number: ov.Node | None = None,
) -> ov.Model:
    """A model whose output `name` is `made` of every step, one after the other along axis 1.

    inner: the parameters of a step. sliced, whole: which inputs of the model some are, a place of axis 1 a step, or all
    of it. states: what of the step before the others are, at first zeros, and empty where the size is free. number: a
    parameter beside those, which is the step's number.
    """
    always = np.array(True)
    parameters = [*([number] if number else []), *inner.values()]
    results = [ops.result(x) for x in (ops.constant(always), made, *states.values())]
    count = ops.gather(ops.shape_of(next(iter(sliced.values()))), ops.constant(1), ops.constant(0))
    loop = ops.loop(count.output(0), ops.constant(always).output(0))
    loop.set_function(ov.Model(results, parameters, "step"))
    loop.set_special_body_ports([0 if number else -1, 0])  # the parameter of its number, the result that says: go on
    for key, given in sliced.items():
        loop.set_sliced_input(inner[key], given.output(0), 0, 1, 1, -1, 1)
    for key, given in whole.items():
        loop.set_invariant_input(inner[key], given.output(0))
    for key, following in states.items():
        shape = [0 if size.is_dynamic else size.get_length() for size in inner[key].get_partial_shape()]
        loop.set_merged_input(inner[key], ops.constant(np.zeros(shape, np.float32)).output(0), following)
    given = [*sliced.values(), *whole.values()]
    model = ov.Model([ops.result(loop.get_concatenated_slices(made, 0, 1, 1, -1, 1))], given)
    names = [*(x.get_friendly_name() for x in given), name]
    for port, text in zip([*model.inputs, *model.outputs], names, strict=True):
        port.get_tensor().set_names({text})
    return model
