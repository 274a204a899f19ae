"""Customize a language model's OpenVINO graph with the transformations API.

Needs openvino and numpy, nothing else: copy this file into your project.

Passes, one or two of each kind:

* MatcherPass   `InsertSlice`        computes the output layer for the last token only
                `SelectGreedy`       picks the next token inside the graph: logits never leave it
* GraphRewrite  `InsertWeights`      replaces 4-bit weights, scales and zero points of named layers
* ModelPass     `ExposeHiddenState`  adds the last hidden state as an output (sentence embeddings)

`customize(model, passes)` applies all of them or none, and reports the matches and changes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino.passes import (
    AnyInput,
    GraphRewrite,
    Manager,
    Matcher,
    MatcherPass,
    ModelPass,
    Or,
    PassBase,
    WrapType,
)

END = np.iinfo(np.int64).max  # of an axis, for a slice
ELEMENTWISE = {"Add", "Subtract", "Multiply", "Divide", "Tanh", "Convert"}
RESCALED_CORRELATION = -0.5  # of factors: better rounding alone gives more than -0.2, AWQ less than -0.9
LAST_TOKEN_OPERATIONS = {"Slice", "StridedSlice", "Gather", "Unsqueeze"}  # they take the last token of a hidden state
DECOMPRESSION = {"Convert", "Subtract", "Multiply", "Reshape", "Transpose"}


# --- 4-bit arrays -----------------------------------------------------------------------------------------


def pack_u4(values: np.ndarray) -> np.ndarray:
    """Pack pairs of 4-bit numbers into bytes, low nibble first, as OpenVINO stores `u4`.

    values: uint8 [..., n], each in 0..15, n even. Returns uint8 [..., n/2].
    Raises ValueError for another type, an odd n or a number over 15.
    """
    values = np.asarray(values)
    if values.dtype != np.uint8:
        raise ValueError(f"pack_u4 takes uint8, not {values.dtype}: convert with .astype(np.uint8) first.")
    if values.ndim == 0 or values.shape[-1] % 2:
        raise ValueError(f"pack_u4 pairs neighbours of the last axis, which must be even, not shape {values.shape}.")
    if values.size and values.max() > 15:
        raise ValueError(f"pack_u4 takes numbers from 0 to 15; the largest here is {values.max()}.")
    return values[..., 0::2] | values[..., 1::2] << 4


def unpack_u4(packed: np.ndarray) -> np.ndarray:
    """Undo `pack_u4`: uint8 [..., n/2] -> uint8 [..., n]. Raises ValueError for another type."""
    packed = np.asarray(packed)
    if packed.dtype != np.uint8:
        raise ValueError(f"unpack_u4 takes uint8, not {packed.dtype}.")
    if packed.ndim == 0:
        raise ValueError("unpack_u4 takes an array of at least one axis, not a scalar.")
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def read_constant(node: ov.Node) -> np.ndarray:
    """The values of a Constant as numpy, 4-bit ones unpacked: u4 as uint8 0..15, i4 as int8 -8..7."""
    kind, shape = node.get_element_type(), tuple(node.get_output_shape(0))
    if kind not in (ov.Type.u4, ov.Type.i4):
        return np.array(node.get_data())  # a copy, because the data may be freed with the model
    count = int(np.prod(shape))
    nibbles = unpack_u4(np.asarray(node.get_data()).view(np.uint8).reshape(-1))[:count].reshape(shape)
    return nibbles if kind == ov.Type.u4 else (nibbles ^ 8).astype(np.int8) - 8


def make_constant(values: np.ndarray, kind: ov.Type) -> ov.Node:
    """A Constant of type `kind`. Values of u4 (0..15) and i4 (-8..7) are packed."""
    if kind not in (ov.Type.u4, ov.Type.i4):
        return ops.constant(np.ascontiguousarray(values), kind)  # a strided float16 would become int16
    flat = (np.asarray(values).reshape(-1) & 15).astype(np.uint8)
    packed = pack_u4(np.append(flat, np.zeros(flat.size % 2, np.uint8)))
    # shared_memory=False copies. A Tensor of a numpy array points to its memory, which is freed after this line.
    return ops.constant(ov.Tensor(packed, list(np.shape(values)), kind), shared_memory=False)


@dataclass(frozen=True)
class Int4Weight:
    """The 4-bit weight of a linear layer with I inputs, O outputs and G groups of I/G inputs each.

    values       [O, I]: uint8 0..15 (asymmetric) or int8 -8..7 (symmetric)
    scales       [O, G]: float; the weight is (values - zero_points) * scales for each group
    zero_points  [O, G]: uint8 0..15 for an asymmetric weight, None for a symmetric one
    input_scale  [I]: factors for the layer's input, or None. AWQ (Lin et al. 2023) needs them: it divides salient
                 inputs and multiplies their weights
    """

    values: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray | None = None
    input_scale: np.ndarray | None = None

    @property
    def kind(self) -> ov.Type:
        return ov.Type.i4 if self.zero_points is None else ov.Type.u4

    def dequantize(self) -> np.ndarray:
        """float32 [O, I]: the weight that the layer multiplies with."""
        grouped = self.values.reshape(*self.scales.shape, -1).astype(np.float32)  # [O, G, I/G]
        if self.zero_points is not None:
            grouped = grouped - self.zero_points[..., None]
        return (grouped * self.scales[..., None].astype(np.float32)).reshape(self.values.shape)


# --- Report -------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """One match of a pass. changed: whether the pass changed the graph there."""

    pass_name: str
    node: str
    description: str
    changed: bool = True


@dataclass
class Report:
    """The matches and changes of `customize`."""

    changes: list[Change] = field(default_factory=list)

    @property
    def changed(self) -> int:
        """The number of changes to the graph."""
        return sum(change.changed for change in self.changes)

    def __str__(self) -> str:
        lines = []
        for change in self.changes:
            mark = "changed" if change.changed else "left alone"
            lines.append(f"{change.pass_name}: {mark} {change.node}: {change.description}")
        return "\n".join(lines) or "no pass matched"


def customize(model: ov.Model, passes: Iterable[PassBase]) -> Report:
    """Run `passes` over `model` in place and in order, all of them or none.

    They run on a clone first, which shares the weights and so needs no memory. Raises ValueError, and leaves `model`
    unchanged, when a pass of this file matches nothing or its data do not fit. Your own passes appear in the report if
    they have a list `changes` of `Change`.
    """
    passes = list(passes)
    for subject in (model.clone(), model):
        report = Report()
        for one in passes:
            for name in ("changes", "problems"):
                getattr(one, name, []).clear()
            manager = Manager()
            manager.register_pass(one)
            manager.run_passes(subject)
            if hasattr(one, "verify"):
                one.verify()
            report.changes += getattr(one, "changes", [])
    return report


class _ReportingPass:
    """Base of the passes below: their changes, their problems, and the error message when nothing matched."""

    nothing_matched = ""

    def start(self) -> None:
        """Initialize the lists. (Base classes from OpenVINO do not call `super().__init__`.)"""
        self.changes: list[Change] = []
        self.problems: list[str] = []

    def note(self, node: ov.Node, description: str, changed: bool = True) -> bool:
        """Report a match; returns `changed`, as a callback must."""
        self.changes.append(Change(type(self).__name__, node.get_friendly_name(), description, changed))
        return changed

    def verify(self) -> None:
        """Raise ValueError when data do not fit or nothing matched.

        Callbacks collect problems instead of raising them, because an exception would have to cross the C++ pass
        manager.
        """
        if self.problems:
            raise ValueError(" ".join(self.problems))
        if not self.changes:
            raise ValueError(f"{type(self).__name__}: {self.nothing_matched}")


# --- MatcherPass: one pattern, one callback -------------------------------------------------------------------


def comes_from_weights(value: ov.Output) -> bool:
    """Whether a tensor is a constant or the decompression of constants."""
    node = value.get_node()
    if node.get_type_name() == "Constant":
        return True
    return node.get_type_name() in DECOMPRESSION and all(comes_from_weights(i) for i in node.input_values())


def result_of(value: ov.Output) -> ov.Node | None:
    """The model's output that a tensor reaches through element-wise operations with constants alone, or None."""
    for port in value.get_target_inputs():
        consumer = port.get_node()
        if consumer.get_type_name() == "Result":
            if "last_hidden_state" not in consumer.output(0).get_names():
                return consumer
            continue
        others = (value for i, value in enumerate(consumer.input_values()) if i != port.get_index())
        if consumer.get_type_name() in ELEMENTWISE and all(map(comes_from_weights, others)):
            if result := result_of(consumer.output(0)):
                return result
    return None


def is_head(value: ov.Output) -> bool:
    """Whether a MatMul looks like a language model's output layer: [batch, tokens, H] x weights -> a result."""
    node = value.get_node()
    hidden, weights = node.input_values()
    rank = hidden.get_partial_shape().rank
    three_axes = rank.is_static and rank.get_length() == 3
    upright = not node.get_attributes()["transpose_a"]
    return three_axes and upright and comes_from_weights(weights) and result_of(value) is not None


class _HeadPass(_ReportingPass, MatcherPass):
    """A MatcherPass whose pattern is the output layer; subclasses change it in `rewrite`."""

    nothing_matched = (
        "this model has no output layer of the form MatMul([batch, tokens, hidden], weights) -> element-wise "
        "operations -> result. Is it a language model whose logits are an output, as optimum-intel exports it?"
    )

    def __init__(self) -> None:
        MatcherPass.__init__(self)
        self.start()
        head = WrapType("opset13.MatMul", [AnyInput(), AnyInput()], is_head)
        self.register_matcher(Matcher(head, type(self).__name__), self._callback)

    def _callback(self, matcher: Matcher) -> bool:
        return self.rewrite(matcher.get_match_root())


class InsertSlice(_HeadPass):
    """Slice the hidden state to its last token before the output layer.

    Generation needs the logits of the last position only, but the exported graph computes
    [batch, tokens, vocabulary]. With the slice it computes [batch, 1, vocabulary], with the same numbers. A model that
    already has the slice stays unchanged, and the report says so.
    """

    def rewrite(self, head: ov.Node) -> bool:
        hidden = head.input_value(0)
        if hidden.get_partial_shape()[1].get_max_length() == 1:  # a slice's shape is 0..1 while the length is open
            return self.note(head, "sees one token already", changed=False)
        start, stop, step, axis = (np.array([n], np.int64) for n in (-1, END, 1, 1))
        last_token = ops.slice(hidden, start, stop, step, axis)  # [batch, 1, hidden]
        last_token.set_friendly_name(f"{head.get_friendly_name()}/last_token")
        head.input(0).replace_source_output(last_token.output(0))
        return self.note(head, f"input {hidden.get_partial_shape()} sliced to the last token")


class SelectGreedy(_HeadPass):
    """Select the most likely token inside the graph: token ids replace the output of logits.

    Output: `token_ids` int64 [batch, tokens], the index of the largest logit (the first of equal ones). With a
    vocabulary of 49,152 a step returns 8 bytes instead of 196 kB. Use it for greedy decoding in your own loop;
    openvino_genai samples from logits and needs them.
    """

    def rewrite(self, head: ov.Node) -> bool:
        result = result_of(head.output(0))
        logits = result.input_value(0)
        best = ops.topk(logits, np.int64(1), -1, "max", "value", index_element_type="i64")  # [batch, tokens, 1]
        token_ids = ops.squeeze(best.output(1), np.array([-1], np.int64))  # [batch, tokens]
        token_ids.set_friendly_name("token_ids")
        result.input(0).replace_source_output(token_ids.output(0))
        result.output(0).set_names({"token_ids"})
        return self.note(head, "the result is token ids now, not logits")


# --- ModelPass: the whole model at once ---------------------------------------------------------------------------


class ExposeHiddenState(_ReportingPass, ModelPass):
    """Add the last hidden state as an output, `last_hidden_state` [batch, tokens, hidden].

    The input of the output layer also represents the text: its mean over the tokens is a simple sentence embedding.
    The pass works before and after `InsertSlice`. The new output always has all tokens.
    """

    nothing_matched = _HeadPass.nothing_matched

    def __init__(self) -> None:
        ModelPass.__init__(self)
        self.start()

    def run_on_model(self, model: ov.Model) -> bool:
        if any("last_hidden_state" in output.get_names() for output in model.outputs):
            return self.note(model.get_results()[-1], "gives its last hidden state already", changed=False)
        head = next((n for n in model.get_ops() if n.get_type_name() == "MatMul" and is_head(n.output(0))), None)
        if head is None:
            return False
        hidden = head.input_value(0)
        if hidden.get_partial_shape()[1].get_max_length() == 1:
            while hidden.get_node().get_type_name() in LAST_TOKEN_OPERATIONS:
                hidden = hidden.get_node().input_value(0)
        result = ops.result(hidden)
        result.output(0).set_names({"last_hidden_state"})
        model.add_results([result])
        return self.note(head, f"its input {hidden.get_partial_shape()} is an output now")


# --- GraphRewrite: several matchers, one pass over the graph -----------------------------------------------------


def layer_name(constant_name: str) -> str:
    """`self.model.layers.0.mlp.down_proj.weight` -> `model.layers.0.mlp.down_proj`, the module's path."""
    name = constant_name.removeprefix("self.")
    for suffix in (".weight", "._openvino_orig_weight"):
        name = name.removesuffix(suffix)
    return name


class _Dequantization(MatcherPass):
    """Matches `Constant -> Convert [-> Subtract zero point] -> Multiply by scale` with a 4-bit constant."""

    def __init__(self, kind: ov.Type, callback: Callable[[ov.Node, ov.Node, ov.Node | None], bool]) -> None:
        super().__init__()
        four_bit = lambda value: value.get_element_type() == kind  # noqa: E731
        weight = WrapType("opset13.Constant", four_bit)
        zero_point = WrapType("opset13.Constant")
        scale = WrapType("opset13.Constant")
        shifted = WrapType("opset13.Convert", [weight])
        if kind == ov.Type.u4:
            converted = WrapType("opset13.Convert", [zero_point])
            shifted = WrapType("opset13.Subtract", [shifted, Or([converted, zero_point])])
        product = WrapType("opset13.Multiply", [shifted, scale])

        def matched(matcher: Matcher) -> bool:
            nodes = {pattern: value.get_node() for pattern, value in matcher.get_pattern_value_map().items()}
            return callback(nodes[weight], nodes[scale], nodes.get(zero_point))

        self.register_matcher(Matcher(product, f"Dequantize{kind.get_type_name()}"), matched)


class InsertWeights(_ReportingPass, GraphRewrite):
    """Replace the 4-bit weights, scales and zero points of named layers.

    weights: layer -> `Int4Weight`. A layer is named by its module path (`model.layers.0.mlp.down_proj`) or by its
    Constant. `customize` raises ValueError, and leaves the model unchanged, when a type, shape or group size does not
    fit the graph, or a layer is not in it. A weight with `input_scale` also gets a Multiply before its layer.
    """

    nothing_matched = "no layer was named: pass at least one."

    def __init__(self, weights: Mapping[str, Int4Weight]) -> None:
        GraphRewrite.__init__(self)
        self.start()
        self.weights = dict(weights)
        for kind in (ov.Type.u4, ov.Type.i4):
            self.add_matcher(_Dequantization(kind, self._replace))

    def _replace(self, weight: ov.Node, scale: ov.Node, zero_point: ov.Node | None) -> bool:
        name = weight.get_friendly_name()
        new = self.weights.get(layer_name(name), self.weights.get(name))
        if new is None:
            return False
        problem = _misfit(new, weight, scale, zero_point)
        if problem:
            self.problems.append(f"Layer {layer_name(name)}: {problem}")
            return False
        if (
            new.input_scale is not None
        ):  # first, because it finds the layer through the constants that are replaced next
            _scale_input(weight, new.input_scale)
        _swap(weight, new.values)
        _swap(scale, new.scales)
        if zero_point is not None:
            _swap(zero_point, new.zero_points)
        groups = new.scales.shape[1]
        return self.note(weight, f"{new.kind.get_type_name()} {list(new.values.shape)} in {groups} groups replaced")

    def verify(self) -> None:
        replaced = {change.node for change in self.changes}
        replaced |= {layer_name(name) for name in replaced}
        if missing := sorted(set(self.weights) - replaced):
            if not self.problems:
                shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
                self.problems.append(
                    f"InsertWeights: {len(missing)} of {len(self.weights)} layers are not in this model as 4-bit "
                    f"weights: {shown}. List what there is with read_int4_weights(model)."
                )
        super().verify()


def _misfit(new: Int4Weight, weight: ov.Node, scale: ov.Node, zero_point: ov.Node | None) -> str | None:
    """Why `new` cannot replace these constants; None where it can."""
    axes = {"values": 2, "scales": 2, "zero_points": 2, "input_scale": 1}
    for name, count in axes.items():
        array = getattr(new, name)
        if array is not None and (not isinstance(array, np.ndarray) or array.ndim != count):
            return f"its {name} must be a numpy array of {count} axes."
    shape, groups = weight.get_output_shape(0), scale.get_output_shape(0)
    if len(shape) not in (2, 3) or list(groups) != [*shape[:-1], 1]:
        return f"its weight {list(shape)} with scales {list(groups)} is not grouped along the inputs; not supported."
    nodes = [node for node in (weight, scale, zero_point) if node is not None]
    if any(len(node.output(0).get_target_inputs()) > 1 for node in nodes):
        return "its constants also serve another layer, which would change with it; not supported."
    if new.kind != weight.get_element_type():
        scheme = "symmetric i4" if new.kind == ov.Type.i4 else "asymmetric u4"
        return (
            f"the new weight is {scheme}, the graph has {weight.get_element_type().get_type_name()}. "
            "A symmetric weight fits an asymmetric layer as values + 8 with zero points of 8."
        )
    expected = (shape[0], int(np.prod(shape[1:])))
    if new.values.shape != expected:
        return f"the new values have shape {list(new.values.shape)}, the layer takes {list(expected)}."
    expected = (shape[0], int(np.prod(groups[1:])))
    if new.scales.shape != expected:
        size = f"groups of {new.values.shape[1] // max(1, new.scales.shape[-1])}"
        return f"the new scales have shape {list(new.scales.shape)} ({size}), the layer takes {list(expected)}."
    low, high, kind = (-8, 7, np.int8) if new.kind == ov.Type.i4 else (0, 15, np.uint8)
    arrays = {"values": (new.values, kind)}
    if zero_point is not None:
        if list(zero_point.get_output_shape(0)) != list(groups):
            return f"its zero points have shape {zero_point.get_output_shape(0)}, not one per group; not supported."
        if new.zero_points.shape != expected:
            return f"the new zero points have shape {list(new.zero_points.shape)}, the layer takes {list(expected)}."
        arrays["zero points"] = (new.zero_points, np.uint8)
    for name, (array, dtype) in arrays.items():
        if array.dtype != dtype or (array.size and not (low <= array.min() and array.max() <= high)):
            return f"the new {name} must be {np.dtype(dtype)} from {low} to {high}."
    if not np.issubdtype(new.scales.dtype, np.floating) or not np.isfinite(new.scales).all():
        return "the new scales must be finite floating-point numbers."
    limit = np.finfo(np.float16).max if scale.get_element_type() == ov.Type.f16 else np.finfo(np.float32).max
    if np.abs(new.scales).max(initial=0) > limit:
        return f"the new scales exceed {limit:g}, the largest number the layer's scale type holds."
    if new.input_scale is not None and new.input_scale.shape != (new.values.shape[1],):
        return f"the input scale has shape {list(new.input_scale.shape)}, the layer has {new.values.shape[1]} inputs."
    if new.input_scale is not None:
        if not np.issubdtype(new.input_scale.dtype, np.floating) or not np.isfinite(new.input_scale).all():
            return "the input scale must be finite floating-point numbers."
        if _layer_of(weight) is None:
            return "its weight is not read by one MatMul alone (embeddings are not), so its input cannot be scaled."
    return None


def _swap(old: ov.Node, values: np.ndarray) -> None:
    """Replace the Constant `old` by one with `values` and the same type, shape and name."""
    new = make_constant(values.reshape(old.get_output_shape(0)), old.get_element_type())
    new.set_friendly_name(old.get_friendly_name())
    for port in old.output(0).get_target_inputs():
        port.replace_source_output(new.output(0))


def _layer_of(weight: ov.Node) -> ov.Node | None:
    """The MatMul that reads a decompressed weight; None where another operation reads it (embeddings)."""
    node = weight
    while len(ports := list(node.output(0).get_target_inputs())) == 1:
        node = ports[0].get_node()
        if node.get_type_name() == "MatMul":
            return node
        if node.get_type_name() not in DECOMPRESSION:
            break
    return None


def _scale_input(weight: ov.Node, factors: np.ndarray) -> None:
    """Multiply the input [batch, tokens, I] of a weight's layer by factors [I]."""
    matmul = _layer_of(weight)
    product = ops.multiply(matmul.input_value(0), ops.constant(factors.reshape(1, 1, -1).astype(np.float32)))
    product.set_friendly_name(f"{matmul.get_friendly_name()}/input_scale")
    matmul.input(0).replace_source_output(product.output(0))


def _int4_constants(model: ov.Model) -> dict[str, tuple[ov.Node, ...]]:
    """Layer -> (weight, scale[, zero point]) for every 4-bit weight grouped along its inputs."""
    constants: dict[str, tuple[ov.Node, ...]] = {}

    def collect(weight: ov.Node, scale: ov.Node, zero_point: ov.Node | None) -> bool:
        groups = scale.get_output_shape(0)
        per_group = zero_point is None or zero_point.get_output_shape(0) == groups
        if per_group and list(groups) == [*weight.get_output_shape(0)[:-1], 1]:
            nodes = (weight, scale) if zero_point is None else (weight, scale, zero_point)
            constants[layer_name(weight.get_friendly_name())] = nodes
        return False  # the graph stays unchanged

    search = GraphRewrite()
    for kind in (ov.Type.u4, ov.Type.i4):
        search.add_matcher(_Dequantization(kind, collect))
    manager = Manager()
    manager.register_pass(search)
    manager.run_passes(model)
    return constants


def read_int4_weights(model: ov.Model) -> dict[str, Int4Weight]:
    """Every 4-bit weight that `InsertWeights` can replace in a model, by the module path of its layer."""
    return {
        name: Int4Weight(*(read_constant(node).reshape(node.get_output_shape(0)[0], -1) for node in nodes))
        for name, nodes in _int4_constants(model).items()
    }


def weights_from(donor: ov.Model, target: ov.Model, layers: Iterable[str] | None = None) -> dict[str, Int4Weight]:
    """The 4-bit weights of `donor` (of `layers`, by default all) for `InsertWeights` into `target`.

    Both must be compressions of one model. Methods that only round better (GPTQ, scale estimation) change only the
    4-bit weights, so each layer can be taken alone. AWQ also rescales layers. It puts a Multiply before a layer, whose
    factors become `input_scale`, or moves the factors into the weight of the previous layer, so that the two layers are
    a pair. Raises ValueError for layers without their partner, and for a donor that differs from the target outside its
    4-bit weights.
    """
    new, old = read_int4_weights(donor), read_int4_weights(target)
    layers = list(new) if layers is None else list(layers)
    if unknown := sorted(set(layers) - (new.keys() & old.keys())):
        raise ValueError(f"Not 4-bit weights of both models: {', '.join(unknown[:5])}.")
    factors, present = _input_factors(donor), _input_factors(target)
    inserted = {name: node for name, node in factors.items() if name not in present}
    if _other_constants(donor, inserted.values()) != _other_constants(target):
        raise ValueError(
            "The donor differs from the target outside its 4-bit weights (normalisation, embeddings or 8-bit "
            "layers), so its weights alone would not give its results. Compress both from the same model, with "
            "the same ratio, group size and backup precision."
        )
    for one, other in _rescaled_pairs(target, new, old):
        if (one in layers) != (other in layers):
            raise ValueError(
                f"{one} and {other} were rescaled against each other (AWQ): one without the other changes the "
                "result. Take both, or neither."
            )
    scales = {name: read_constant(node).reshape(-1) for name, node in inserted.items()}
    return {name: replace(new[name], input_scale=scales.get(name)) for name in layers}


def _input_factors(model: ov.Model) -> dict[str, ov.Node]:
    """Layer -> the Constant that its input is multiplied by, if any."""
    factors = {}
    for name, (weight, *_) in _int4_constants(model).items():
        layer = _layer_of(weight)
        source = layer and layer.input_value(0).get_node()
        if source and source.get_type_name() == "Multiply":
            for node in (value.get_node() for value in source.input_values()):
                if node.get_type_name() == "Convert":  # save_model stores float32 as float16
                    node = node.input_value(0).get_node()
                if node.get_type_name() == "Constant":
                    factors[name] = node
    return factors


def _other_constants(model: ov.Model, without: Iterable[ov.Node] = ()) -> Counter:
    """Hashes of all constants except 4-bit weights with their scales and zero points, and those in `without`."""
    skip = {node.get_friendly_name() for nodes in _int4_constants(model).values() for node in nodes}
    skip |= {node.get_friendly_name() for node in without}
    return Counter(
        hashlib.sha256(node.get_data().tobytes()).hexdigest()
        for node in model.get_ops()
        if node.get_type_name() == "Constant" and node.get_friendly_name() not in skip and node.get_byte_size() >= 64
    )


def _rescaled_pairs(
    model: ov.Model, new: Mapping[str, Int4Weight], old: Mapping[str, Int4Weight]
) -> list[tuple[str, str]]:
    """Layers (consumer, producer) where the consumer's inputs were scaled by s and the producer's outputs by 1/s.

    AWQ does this at the producer's MatMul -> Multiply -> the consumer's MatMul. Both factors are estimated for each
    channel. Rounding alone leaves their logarithms uncorrelated; rescaling gives them a correlation of about -1.
    """
    layers = {name: layer for name, (weight, *_) in _int4_constants(model).items() if (layer := _layer_of(weight))}
    names = {layer.get_friendly_name(): name for name, layer in layers.items()}

    def log_factor(name: str, axis: int) -> np.ndarray:
        a, b = new[name].dequantize(), old[name].dequantize()  # [O, I]
        return np.log(np.clip((a * b).sum(axis) / ((b * b).sum(axis) + 1e-12), 1e-3, 1e3))

    pairs = []
    for consumer, layer in layers.items():
        source = layer.input_value(0).get_node()
        sources = source.input_values() if source.get_type_name() == "Multiply" else []
        for producer in (names.get(value.get_node().get_friendly_name()) for value in sources):
            if {consumer, producer} <= new.keys() & old.keys():
                s, t = log_factor(consumer, 0), log_factor(producer, 1)
                if s.std() and t.std() and np.corrcoef(s, t)[0, 1] < RESCALED_CORRELATION:
                    pairs.append((consumer, producer))
    return sorted(pairs)
