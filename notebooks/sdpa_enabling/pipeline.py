"""Find attention that is written by hand in an OpenVINO graph, fuse it, and keep its cache as state.

Needs openvino and numpy, nothing else: copy this file into your project.

* `fuse_attention(model)`  replaces the product, scale, mask, softmax and second product by one operation
* `make_stateful(model)`   turns inputs and outputs that carry keys and values into state
* `layer_types(compiled)`  counts the operations that a compiled model executes
* `guard(model)`           properties for a model whose attention has no mask and a changing number of keys
* `analyse(file)`          all of it, for a file

The first two change the model in place and return a report of what they changed, what they left alone, and why.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino.passes import MakeStateful, Manager

FUSED = "ScaledDotProductAttention"
WITH_CACHE = f"{FUSED} with its cache"  # it reads and writes the state itself
MASKED = -1e4  # a score at or below this hides a key
LOWEST = -65504.0  # of FP16: added to a score it hides the key, and two of them are still finite in FP32
SWAPPED = (0, 1, 3, 2)  # the axes of a matrix and its transpose


class Change(NamedTuple):
    """One attention or cache. changed: whether the graph was changed there; description: how, or why not."""

    node: str
    description: str
    changed: bool = True


@dataclass
class Report:
    """What was found in a model."""

    changes: list[Change] = field(default_factory=list)
    nothing: str = "no attention was found: the model stays as it was"

    @property
    def changed(self) -> int:
        """The number of changes to the graph."""
        return sum(change.changed for change in self.changes)

    def __str__(self) -> str:
        lines = Counter((("changed" if c.changed else "left alone"), c.description) for c in self.changes)
        return "\n".join(f"{count} {mark}: {text}" for (mark, text), count in lines.items()) or self.nothing


class LeftAlone(Exception):
    """Why something that looks like attention is not replaced."""


@dataclass
class Match:
    """Attention as it was found: softmax(query @ key^T * scale + masks) @ value, all [batch, heads, tokens, size].

    order: how the axes of the result are permuted, or None. product: the node that gives the result.
    """

    query: ov.Output
    key: ov.Output
    value: ov.Output
    product: ov.Node
    order: tuple[int, ...] | None
    scale: ov.Output | float = 1.0
    masks: list[ov.Output] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


def layer_types(compiled: ov.CompiledModel) -> Counter:
    """How many operations of each type a compiled model executes; constants, inputs and outputs do not count.

    OpenVINO's type of attention with a cache is FUSED, too. It counts as WITH_CACHE if the state is its own input.
    """
    types: Counter = Counter()
    for node in compiled.get_runtime_model().get_ops():
        kind = _executed_type(node)
        if kind == FUSED and "MemoryInput" in [_executed_type(value.get_node()) for value in node.input_values()]:
            kind = WITH_CACHE
        types[kind] += kind not in ("Const", "Input", "Output")
    return +types


def _executed_type(node: ov.Node) -> str:
    return node.get_rt_info()["layerType"].astype(str)


def analyse(file: Path, device: str = "CPU") -> tuple[ov.Model, str]:
    """Run both passes on the model in an .xml or .onnx file; returns it, and what is executed before and after.

    Raises ValueError for a file that is no model, or a model that the device cannot compile.
    """
    core = ov.Core()
    try:
        model = core.read_model(file)
        before = layer_types(core.compile_model(model, device))
        reports = (make_stateful(model), fuse_attention(model))
        after = layer_types(core.compile_model(model, device))
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ValueError(f"{Path(file).name} is no model that runs on {device}. OpenVINO says: {lines[-1]}") from error
    kinds = (WITH_CACHE, FUSED, "Subgraph", "MatMul", "Softmax")
    executed = [", ".join(f"{types[kind]} {kind}" for kind in kinds if types[kind]) for types in (before, after)]
    lines = [f"executed before: {executed[0] or 'no attention'}", *map(str, reports)]
    lines += [f"executed after: {executed[1] or 'no attention'}"]
    lines += [f"compile it with {properties}, or results can be wrong" for properties in [guard(model)] if properties]
    return model, "\n".join(lines)


# --- Attention ----------------------------------------------------------------------------------------------------


def fuse_attention(model: ov.Model) -> Report:
    """Replace attention that is written by hand by ScaledDotProductAttention. The results are the same.

    It looks for a Softmax, so names, frameworks and exporters do not matter. What the operation cannot express, such
    as a soft cap, stays as it is. Masks that the CPU takes badly become masks of numbers. Rows in which every key is
    masked have no defined result, before and after.

    Where the rows of a batch share a mask and the attention reads its cache, each row gets a mask of its own. OpenVINO
    2026.4.1 reads past the end of a shared one: all rows but the first are wrong in BF16 and FP16, on ARM also in FP32.
    """
    report, masks = Report(), {}
    for node in model.get_ordered_ops():
        if node.get_type_name() == FUSED:
            report.changes.append(_mended(node, masks))
        elif node.get_type_name() == "Softmax":
            try:
                found = find_attention(node)
                fused = _fused(found, masks)
            except LeftAlone as reason:
                report.changes.append(Change(node.get_friendly_name(), str(reason), False))
                continue
            name = found.product.get_friendly_name()
            found.product.output(0).replace(fused)
            fused.get_node().set_friendly_name(name)
            report.changes.append(Change(name, f"{', '.join(found.kinds)} -> {FUSED}"))
    _separate_masks(model, report)
    model.validate_nodes_and_infer_types()
    return report


def find_attention(softmax: ov.Node) -> Match:
    """The attention that a Softmax belongs to. Raises LeftAlone with the reason if it belongs to none."""
    rank = softmax.get_output_partial_shape(0).rank
    if rank.is_dynamic or softmax.get_attributes()["axis"] not in (-1, rank.get_length() - 1):
        raise LeftAlone("its Softmax is not over the last axis")
    reader = softmax
    while (reader := _only_reader(reader)).get_type_name() == "Convert":
        pass
    weights_first = reader.get_input_size() == 2 and _reaches(reader.input_value(0), softmax)
    if reader.get_type_name() not in ("MatMul", "Einsum") or not weights_first:
        raise LeftAlone(f"its Softmax is read by {reader.get_type_name()}, not by a product with values")
    above: list[tuple[ov.Node, int]] = []  # the operations between scores and Softmax, and which input is the scores
    value = softmax.input_value(0)
    while value.get_node().get_type_name() not in ("MatMul", "Einsum"):
        node = value.get_node()
        place = next((i for i, one in enumerate(node.input_values()) if _has_product(one)), None)
        if place is None:
            raise LeftAlone("its Softmax does not come from a product of queries and keys")
        if above:
            _only_reader(node)
        above.append((node, place))
        value = node.input_value(place)
    if above:
        _only_reader(value.get_node())
    query, key = _operands(value.get_node(), scores=True)
    _, values, order = _operands(reader, scores=False)
    for name, one in (("queries", query), ("keys", key), ("values", values)):
        shape, kind = one.get_partial_shape(), one.get_element_type()
        if shape.rank.is_dynamic or shape.rank.get_length() != 4:
            raise LeftAlone(f"its {name} have the shape {shape}, not [batch, heads, tokens, size]")
        if shape[3].is_dynamic:
            raise LeftAlone(f"the last axis of its {name} {shape} has no fixed size")
        if kind not in (ov.Type.f32, ov.Type.f16, ov.Type.bf16) or kind != query.get_element_type():
            raise LeftAlone(f"its {name} are {kind.get_type_name()}: the operation takes f32, f16 or bf16, one of them")
    found = Match(query, key, values, reader, order)
    found.kinds = [node.get_type_name() for node in (value.get_node(), *(n for n, _ in above[::-1]), softmax, reader)]
    for node, place in above:
        _undo(found, node, place)
    _move_factors(found)
    return found


def _undo(found: Match, node: ov.Node, place: int) -> None:
    """Move an operation between the scores and the Softmax into the scale or the masks of the attention."""
    kind = node.get_type_name()
    others = [one for i, one in enumerate(node.input_values()) if i != place]
    if kind == "Convert":
        return
    if kind in ("Multiply", "Divide") and place == 0 or kind == "Multiply":
        found.scale = _times(found.scale, _single(others[0], kind), inverse=kind == "Divide")
    elif kind == "Add" or (kind == "Subtract" and place == 0):
        if others[0].get_partial_shape().rank == ov.Dimension(0) or others[0].get_partial_shape()[-1] == ov.Dimension(
            1
        ):
            return  # a Softmax does not change when all its keys do alike
        sign = -1.0 if kind == "Subtract" else 1.0
        found.masks.append(_scaled(_in_f32(others[0]), _times(found.scale, sign)))
    elif kind == "Select" and place > 0 and _constant(others[1], kind) <= MASKED:
        hidden = np.float32(max(_constant(others[1], kind), LOWEST))
        ends = (np.float32(0), hidden) if place == 1 else (hidden, np.float32(0))
        found.masks.append(ops.select(others[0], *ends).output(0))
    elif kind == "Maximum" and _constant(others[0], kind) <= MASKED:
        return  # it changes hidden keys only
    else:
        raise LeftAlone(f"{kind} stands between its scores and the Softmax, and the operation has no place for it")


def _fused(found: Match, masks: dict) -> ov.Output:
    """What replaces the result of an attention. masks: those of earlier layers, see `_shared`."""
    mask = None
    for one in found.masks:
        one = _shared(one, masks)
        mask = one if mask is None else ops.add(mask, one).output(0)
    if mask is None:
        result = _unmasked(found.query, found.key, found.value, found.scale)
    else:
        if missing := 4 - mask.get_partial_shape().rank.get_length():
            mask = ops.unsqueeze(mask, np.arange(missing)).output(0)
        scale = ops.constant(np.float32(found.scale)).output(0) if isinstance(found.scale, float) else found.scale
        kind = found.query.get_element_type()
        inputs = [one if one.get_element_type() == kind else ops.convert(one, kind) for one in (mask, scale)]
        result = ops.scaled_dot_product_attention(found.query, found.key, found.value, *inputs, causal=False)
    return (result if found.order is None else ops.transpose(result, np.array(found.order))).output(0)


def _shared(mask: ov.Output, masks: dict) -> ov.Output:
    """The same mask of an earlier layer, if there is one: layers often choose two numbers by one condition."""
    if mask.get_node().get_type_name() != "Select":
        return mask
    condition, *ends = mask.get_node().input_values()
    numbers = [_number(end) for end in ends]
    return mask if None in numbers else masks.setdefault((_identity(condition), *numbers), mask)


def _unmasked(query: ov.Output, key: ov.Output, value: ov.Output, scale: ov.Output | float) -> ov.Node:
    """Attention without a mask. The operation takes a scale only after a mask, so queries take over what differs from
    its own scale, 1 / sqrt(size)."""
    factor = _times(scale, query.get_partial_shape()[3].get_length() ** 0.5)
    if not isinstance(factor, float) or not np.isclose(factor, 1, rtol=1e-6):
        factor = ops.constant(np.float32(factor)).output(0) if isinstance(factor, float) else factor
        query = ops.multiply(query, ops.convert(factor, query.get_element_type())).output(0)
    return ops.scaled_dot_product_attention(query, key, value, causal=False)


def _mended(node: ov.Node, masks: dict) -> Change:
    """Replace the mask of a fused attention if it is a scalar or boolean.

    OpenVINO's own fusion writes a scalar where there is no mask, and with a cache the CPU raises an error at it. With a
    boolean mask the CPU reads a text several times slower than with a mask of numbers.
    """
    name, inputs = node.get_friendly_name(), node.input_values()
    mask = inputs[3] if len(inputs) > 3 and not node.get_attributes()["causal"] else None
    if mask is not None and mask.get_element_type() == ov.Type.boolean:
        numbers = _shared(ops.select(mask, np.float32(0), np.float32(LOWEST)).output(0), masks)
        inputs[3] = ops.convert(numbers, inputs[0].get_element_type()).output(0)
        mended, text = ops.scaled_dot_product_attention(*inputs, causal=False), "a boolean mask -> a mask of numbers"
    elif mask is not None and mask.get_partial_shape().rank == ov.Dimension(0) and len(inputs) == 5:
        mended, text = _unmasked(*inputs[:3], _single(inputs[4], FUSED)), "a scalar mask -> no mask"
    else:
        return Change(name, f"it is {FUSED} already", False)
    node.output(0).replace(mended.output(0))
    mended.set_friendly_name(name)
    return Change(name, f"{FUSED}: {text}")


def _separate_masks(model: ov.Model, report: Report) -> None:
    """Give each row of a batch its own mask in attention that reads its cache. Layers that share a mask still do."""
    whole: dict[tuple[str, int], ov.Output] = {}  # by the mask that rows share
    for node in model.get_ordered_ops():
        if _rows_share_a_mask(node):
            query, mask = node.input_value(0), node.input_value(3)
            if _identity(mask) not in whole:
                batch = ops.gather(ops.shape_of(query, output_type="i64"), np.array([0]), np.int64(0))
                shape = ops.concat([batch, ops.constant(np.ones(3, np.int64))], 0)
                whole[_identity(mask)] = ops.broadcast(mask, shape, broadcast_spec="BIDIRECTIONAL").output(0)
            node.input(3).replace_source_output(whole[_identity(mask)])
            name = node.get_friendly_name()
            known = [i for i, change in enumerate(report.changes) if change.node == name and not change.changed]
            for i in known:  # was fused already
                report.changes[i] = Change(name, f"{FUSED}: a mask that rows share -> a mask for each row")


def _rows_share_a_mask(node: ov.Node) -> bool:
    """Whether a node is attention that reads its cache, and has one mask for all rows of a batch."""
    if node.get_type_name() != FUSED or node.get_input_size() < 4 or node.get_attributes()["causal"]:
        return False
    one, rows, mask = ov.Dimension(1), node.get_input_partial_shape(0)[0], node.get_input_partial_shape(3)
    shared = mask.rank in (ov.Dimension(2), ov.Dimension(3)) or mask.rank == ov.Dimension(4) and mask[0] == one
    return shared and rows != one and _is_state(node.input_value(1))


def _operands(node: ov.Node, scores: bool) -> tuple:
    """Queries and keys of the first product, or None, the values and the order of the result of the second one."""
    left, right = node.input_values()
    if node.get_type_name() == "Einsum":
        terms, _, result = node.get_attributes()["equation"].replace(" ", "").partition("->")
        a, b = terms.split(",")
        if not scores:  # a: batch, heads, queries, keys
            size = next((c for c in b if c not in a), "")
            if sorted(result) != sorted(a[:3] + size) or sorted(b) != sorted(a[:2] + a[3:] + size):
                raise LeftAlone(f"its Einsum {terms}->{result} is not a product of weights and values")
            order = tuple((a[:3] + size).index(c) for c in result)
            return None, _permuted(right, b, a[:2] + a[3] + size), None if order == (0, 1, 2, 3) else order
        if len(result) != 4:
            raise LeftAlone(f"its Einsum {terms}->{result} gives no [batch, heads, queries, keys]")
        if result[3] in a:
            left, right, a, b = right, left, b, a
        size = next((c for c in a if c not in result), "")
        if sorted(a) != sorted(result[:3] + size) or sorted(b) != sorted(result[:2] + result[3] + size):
            raise LeftAlone(f"its Einsum {terms}->{result} is not a product of queries and keys")
        return _permuted(left, a, result[:3] + size), _permuted(right, b, result[:2] + result[3] + size)
    flags = node.get_attributes()
    if any(one.get_partial_shape().rank != ov.Dimension(4) for one in (left, right)):
        raise LeftAlone(f"its products have {left.get_partial_shape().rank} axes: heads and batch are merged")
    if scores:
        left = _transposed(left, SWAPPED) if flags["transpose_a"] else left
        return left, right if flags["transpose_b"] else _transposed(right, SWAPPED)
    if flags["transpose_a"]:
        raise LeftAlone("its weights are transposed before the product with values")
    return None, _transposed(right, SWAPPED) if flags["transpose_b"] else right, None


def _permuted(value: ov.Output, letters: str, wanted: str) -> ov.Output:
    return _transposed(value, tuple(letters.index(c) for c in wanted))


def _transposed(value: ov.Output, order: tuple[int, ...]) -> ov.Output:
    """A tensor with permuted axes; a Transpose that stands there already is merged into the new one."""
    node = value.get_node()
    if node.get_type_name() == "Multiply" and _is_single(node.input_value(1)):  # the factor moves into the scale later
        return ops.multiply(_transposed(node.input_value(0), order), node.input_value(1)).output(0)
    if node.get_type_name() == "Transpose" and node.input_value(1).get_node().get_type_name() == "Constant":
        before = node.input_value(1).get_node().get_data()
        value, order = node.input_value(0), tuple(int(before[i]) for i in order)
    return value if order == (0, 1, 2, 3) else ops.transpose(value, np.array(order)).output(0)


def _move_factors(found: Match) -> None:
    """Scalar factors of queries and keys become part of the scale: a cache must reach the operation unchanged."""
    for name in ("query", "key"):
        node = getattr(found, name).get_node()
        while node.get_type_name() in ("Multiply", "Divide") and _is_single(node.input_value(1)):
            found.scale = _times(found.scale, _single(node.input_value(1), ""), node.get_type_name() == "Divide")
            setattr(found, name, node.input_value(0))
            node = node.input_value(0).get_node()


def _only_reader(node: ov.Node) -> ov.Node:
    readers = [port.get_node() for port in node.output(0).get_target_inputs()]
    if len(readers) != 1:
        others = ", ".join(sorted({reader.get_type_name() for reader in readers}))
        raise LeftAlone(f"its {node.get_type_name()} is read by {len(readers)} operations ({others})")
    return readers[0]


def _reaches(value: ov.Output, node: ov.Node) -> bool:
    while value.get_node().get_type_name() == "Convert":
        value = value.get_node().input_value(0)
    return value.get_node().get_name() == node.get_name()


def _has_product(value: ov.Output, depth: int = 8) -> bool:
    """Whether a tensor is a product of two tensors, or comes from one element by element."""
    node = value.get_node()
    if node.get_type_name() in ("MatMul", "Einsum"):
        return True
    through = ("Add", "Subtract", "Multiply", "Divide", "Select", "Maximum", "Minimum", "Convert", "Tanh", "Clamp")
    inputs = node.input_values() if depth and node.get_type_name() in through else ()
    return any(_has_product(one, depth - 1) for one in inputs)


def _identity(value: ov.Output) -> tuple[str, int]:
    return value.get_node().get_name(), value.get_index()  # the name is unique, a friendly name need not be


def _is_single(value: ov.Output) -> bool:
    shape = value.get_partial_shape()
    return shape.is_static and int(np.prod(shape.to_shape())) == 1


def _number(value: ov.Output) -> float | None:
    """The value of a constant of one element, which may be stored as FP16; None for anything else."""
    node = value.get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return float(node.get_data().reshape(-1)[0]) if node.get_type_name() == "Constant" and _is_single(value) else None


def _constant(value: ov.Output, kind: str) -> float:
    if (number := _number(value)) is None:
        raise LeftAlone(f"{kind} between its scores and the Softmax takes more than a constant")
    return number


def _single(value: ov.Output, kind: str) -> ov.Output | float:
    """A scale: a number, or a tensor of one element that the graph computes."""
    if not _is_single(value):
        raise LeftAlone(f"{kind} by a tensor {value.get_partial_shape()} stands between its scores and the Softmax")
    number = _number(value)
    return _in_f32(ops.reshape(value, np.array([], np.int64), False).output(0)) if number is None else number


def _times(a: ov.Output | float, b: ov.Output | float, inverse: bool = False) -> ov.Output | float:
    if isinstance(a, float) and isinstance(b, float):
        return a / b if inverse else a * b
    a, b = (np.float32(one) if isinstance(one, float) else one for one in (a, b))
    return (ops.divide if inverse else ops.multiply)(a, b).output(0)


def _in_f32(value: ov.Output) -> ov.Output:
    return value if value.get_element_type() == ov.Type.f32 else ops.convert(value, "f32").output(0)


def _scaled(mask: ov.Output, scale: ov.Output | float) -> ov.Output:
    if isinstance(scale, float):
        return mask if scale == 1.0 else ops.multiply(mask, np.float32(scale)).output(0)
    return ops.multiply(mask, scale).output(0)


# --- Cache ------------------------------------------------------------------------------------------------------------


def make_stateful(model: ov.Model, batch: str | None = None) -> Report:
    """Keep the cache inside the model. A cache is an input that a Concat lengthens and an output then returns.

    The model gets the input `beam_idx` [batch], the row of the cache that each row continues. Without it, and without
    an initial value of the state, the CPU does not fuse the cache. batch: the input whose first axis is the batch; by
    default the first that is no cache. Raises ValueError where every input is a cache.
    """
    report = Report(nothing="no cache was found: no input is lengthened by a Concat and returned")
    pairs = []
    for result in model.get_results():
        concat = result.input_value(0).get_node()
        if concat.get_type_name() != "Concat":
            continue
        past = concat.input_value(0)  # earlier keys or values; new ones, which may be an input, too, come behind
        if past.get_partial_shape()[concat.get_attributes()["axis"]].is_dynamic:
            pairs += [(p, result) for p in model.get_parameters() if p.get_name() == past.get_node().get_name()]
    if not pairs:
        return report
    caches = [parameter.get_name() for parameter, _ in pairs]
    others = [port for port in model.inputs if port.get_node().get_name() not in caches]
    if not batch and not others:
        raise ValueError("Every input of the model is a cache, so none says how many rows a batch has.")
    rows = model.input(batch) if batch else others[0]
    beams = ops.parameter([-1], np.int32, "beam_idx")
    beams.output(0).set_names({"beam_idx"})
    for parameter, _ in pairs:
        readers = parameter.output(0).get_target_inputs()
        selected = ops.gather(parameter, beams, np.int64(0))
        for reader in readers:
            reader.replace_source_output(selected.output(0))
        report.changes.append(Change(parameter.get_friendly_name(), f"{parameter.get_partial_shape()} -> state"))
    model.add_parameters([beams])
    manager = Manager()
    manager.register_pass(MakeStateful(pairs))
    manager.run_passes(model)
    count = ops.gather(ops.shape_of(rows, output_type="i64"), np.array([0]), np.int64(0))
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue" and not node.get_input_size():
            sizes = [size.get_length() if size.is_static else 0 for size in node.get_output_partial_shape(0)][1:]
            zero = ops.constant(0, node.get_output_element_type(0))
            empty = ops.broadcast(zero, ops.concat([count, ops.constant(np.array(sizes, np.int64))], 0))
            node.set_arguments([empty.output(0)])
        if node.get_type_name() == FUSED and node.get_attributes()["causal"]:
            text = "is_causal counts from the first key without state, and from the last one with state: results change"
            report.changes.append(Change(node.get_friendly_name(), text, False))
    model.validate_nodes_and_infer_types()
    return report


def guard(model: ov.Model) -> dict[str, str]:
    """Properties for `compile_model` that avoid wrong results of attention without a mask (OpenVINO 2026.4.1).

    If the first call has one key, later calls with many keys return wrong values. Models with a mask, a fixed number
    of keys or the cache as state are not affected, and get no property.
    """
    model = model.clone()
    fuse_attention(model)
    for node in model.get_ops():
        if node.get_type_name() == FUSED and node.get_input_size() < 4 and not node.get_attributes()["causal"]:
            if node.get_input_partial_shape(1)[2].is_dynamic and not _is_state(node.input_value(1)):
                return {"SNIPPETS_MODE": "DISABLE"}
    return {}


def _is_state(keys: ov.Output) -> bool:
    """Whether keys are the state of the model, possibly lengthened, selected or repeated."""
    node = keys.get_node()
    through = ("Concat", "Gather", "Transpose", "Reshape", "Broadcast", "Unsqueeze", "Multiply")
    inputs = node.input_values() if node.get_type_name() in through else ()
    return node.get_type_name() == "ReadValue" or any(_is_state(one) for one in inputs)
