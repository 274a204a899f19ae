"""Turns the model of one step into a model of all steps, with the loop inside the graph."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops


def step_ports(step: ov.Model) -> tuple[dict[str, ov.Node], list[ov.Output]]:
    """The parameters of a step by name, and the values of its results: the body of a loop."""
    parameters = {node.output(0).any_name: node for node in step.get_parameters()}
    return parameters, [node.input_value(0) for node in step.get_results()]


def loop_model(
    body_inputs: dict[str, ov.Node],
    name: str,
    body_output: ov.Output,
    sliced: dict[str, ov.Node],
    invariant: dict[str, ov.Node],
    states: dict[str, ov.Output],
    step_number: ov.Node | None = None,
) -> ov.Model:
    """A model whose output `name` is `body_output` of all steps, concatenated along axis 1.

    body_inputs: the parameters of a step. sliced: those that get one place of axis 1 of a model input per step.
    invariant: those that get a whole model input. states: those that get a value of the step before. A state starts
    with zeros; where its size is dynamic, it starts empty. step_number: another parameter, which gets the number of the
    step.
    """
    true = np.array(True)
    parameters = list(body_inputs.values())
    if step_number:
        parameters.insert(0, step_number)
    results = [ops.result(x) for x in (ops.constant(true), body_output, *states.values())]
    axis, zero = ops.constant(1), ops.constant(0)
    steps = ops.gather(ops.shape_of(next(iter(sliced.values()))), axis, zero)
    loop = ops.loop(steps.output(0), ops.constant(true).output(0))
    loop.set_function(ov.Model(results, parameters, "step"))
    # the parameter that gets the number of the step, and the result that is the condition to go on
    loop.set_special_body_ports([0 if step_number else -1, 0])
    for key, node in sliced.items():
        loop.set_sliced_input(body_inputs[key], node.output(0), 0, 1, 1, -1, 1)
    for key, node in invariant.items():
        loop.set_invariant_input(body_inputs[key], node.output(0))
    for key, next_value in states.items():
        shape = [0 if size.is_dynamic else size.get_length() for size in body_inputs[key].get_partial_shape()]
        start = ops.constant(np.zeros(shape, np.float32))
        loop.set_merged_input(body_inputs[key], start.output(0), next_value)
    inputs = [*sliced.values(), *invariant.values()]
    model = ov.Model([ops.result(loop.get_concatenated_slices(body_output, 0, 1, 1, -1, 1))], inputs)
    port_names = [*(node.get_friendly_name() for node in inputs), name]
    for port, port_name in zip([*model.inputs, *model.outputs], port_names, strict=True):
        port.get_tensor().set_names({port_name})
    return model
