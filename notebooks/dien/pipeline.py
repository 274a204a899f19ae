"""Predicts click-through rates with a converted DIEN: `ClickModel(ir_path).score(...)`.

The module needs openvino and numpy only: copy this file into your project.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino.passes import AnyInput, Manager, Matcher, MatcherPass, PassBase, WrapType

PIECE = 32, 256  # least and most rows of a piece; a recurrence uses one core, so each stream runs one piece of a batch
STEPS = (0.1, 0.25, 0.5, 1.0)  # lengths of the graphs, as shares of the length of the IR
ON_ARM = platform.machine().lower() in ("aarch64", "arm64")


class SplitGates(MatcherPass):
    """Replaces VariadicSplit into equal parts by Split, which the CPU plugin's fusion of recurrent cells looks for."""

    def __init__(self) -> None:
        super().__init__()
        pattern = WrapType("opset13.VariadicSplit", [AnyInput(), WrapType("opset13.Constant"), AnyInput()])

        def callback(matcher: Matcher) -> bool:
            node = matcher.get_match_root()
            axis = int(node.input_value(1).get_node().get_data())
            sizes = [port.get_partial_shape()[axis] for port in node.outputs()]
            if any(size.is_dynamic for size in sizes) or len({size.get_length() for size in sizes}) > 1:
                return False
            split = ops.split(node.input_value(0), node.input_value(1), len(sizes))
            for old, new in zip(node.outputs(), split.outputs(), strict=True):
                for port in old.get_target_inputs():
                    port.replace_source_output(new)
            return True

        self.register_matcher(Matcher(pattern, "SplitGates"), callback)


def run_passes(model: ov.Model, passes: Sequence[PassBase]) -> ov.Model:
    """Run transformation passes on a model in place, and return it."""
    manager = Manager()
    for transformation in passes:
        manager.register_pass(transformation)
    manager.run_passes(model)
    return model


def shorten(model: ov.Model, length: int) -> ov.Model:
    """A copy of an unrolled model for histories of `length` steps; the copy shares the weights.

    The model splits the inputs of the AUGRU into steps and joins its states again. The copy leaves out the last steps
    of both. Raises ValueError for a length that the model does not have.
    """
    model = model.clone()
    longest = model.input("mid_his").get_partial_shape()[1].get_length()
    if not 1 <= length <= longest:
        raise ValueError(f"This model has {longest} steps: it cannot be cut to {length}. Convert it for more steps.")
    if length == longest:
        return model
    for parameter in model.get_parameters():
        shape = parameter.get_partial_shape()
        if len(shape) == 2:
            parameter.set_partial_shape(ov.PartialShape([shape[0], length]))
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Split" and _are_steps(node.outputs(), longest):
            placeholder = ops.parameter([-1, length], np.float32)  # shapes are not inferred yet
            split = ops.split(placeholder, node.input_value(1), length)
            split.input(0).replace_source_output(node.input_value(0))
            for old, new in zip(node.outputs(), split.outputs(), strict=False):
                for port in old.get_target_inputs():
                    port.replace_source_output(new)
        elif node.get_type_name() == "Concat" and _are_steps(node.input_values(), longest):
            joined = ops.concat(node.input_values()[:length], 1)
            for port in node.output(0).get_target_inputs():
                port.replace_source_output(joined.output(0))
    model.validate_nodes_and_infer_types()
    return model


def _are_steps(values: Sequence[ov.Output], count: int) -> bool:
    """Whether these are `count` pieces of one step each, along axis 1."""
    shapes = [value.get_partial_shape() for value in values]
    return len(shapes) == count and all(len(shape) > 1 and shape[1] == 1 for shape in shapes)


class ClickModel:
    """A converted DIEN. It compiles graphs of a few lengths when they are first needed, and caches them on disk.

    ir_path: the .xml file that `convert` wrote. cache: a folder, by default `cache` next to the file; None switches
    caching off. properties: OpenVINO's. By default the arithmetic is f32, the same on every machine
    (INFERENCE_PRECISION_HINT="bf16" is faster on a CPU that has it), and a batch is spread over as many streams as the
    device finds best. Threads may share a model. Raises ValueError for another file, and on ARM for INT8.
    """

    def __init__(self, ir_path: str | Path, device: str = "CPU", cache: str | Path | None = "beside", **properties):
        ir_path = Path(ir_path)
        if not ir_path.is_file():
            raise ValueError(f"{ir_path} is not there. Give the .xml file that convert() wrote.")
        self.model = ov.Core().read_model(ir_path)
        if not self.model.has_rt_info(["dien", "sizes"]):
            raise ValueError(f"{ir_path} is not a converted DIEN. Give the .xml file that convert() wrote.")
        quantised = any(node.get_type_name() == "FakeQuantize" for node in self.model.get_ops())
        if quantised and ON_ARM and device in ("CPU", "AUTO"):  # AUTO has nothing else there
            raise ValueError(
                f"{ir_path} is in INT8, whose scores are wrong on ARM (OpenVINO 2026.4). Give that in FP32."
            )
        sizes = self.model.get_rt_info(["dien", "sizes"]).value
        self.users, self.items, self.categories = (int(size) for size in sizes.split())
        self.independent = self.model.get_rt_info(["dien", "independent"]).value == "True"
        self.length = int(self.model.get_rt_info(["dien", "length"]).value)
        hint = "THROUGHPUT" if self.independent else "LATENCY"  # a batch with its own statistics is not cut
        defaults = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": hint}
        self.device = device
        self.properties = defaults | properties
        if cache is not None:
            self.properties["CACHE_DIR"] = str(ir_path.parent / "cache" if cache == "beside" else cache)
        self._graphs: dict[int, tuple[ov.CompiledModel, list[ov.InferRequest]]] = {}
        self._lock = Lock()

    def score(self, user_ids, item_ids, category_ids, histories, history_categories) -> np.ndarray:
        """The probability of a click for each row, float32 [batch].

        user_ids, item_ids, category_ids: [batch]. histories, history_categories: one sequence of ids a row, oldest
        first, of any length; only the latest items count when it is longer than the IR. Do not pad histories: 0 is an
        item like any other here. Raises a ValueError that names the first row with an unknown id, an empty history,
        unequal lengths or NaN.
        """
        return self.explain(user_ids, item_ids, category_ids, histories, history_categories)[0]

    def explain(self, user_ids, item_ids, category_ids, histories, history_categories):
        """Scores [batch], and the attention of each row: an array over its history that sums to 1."""
        inputs = self._inputs(user_ids, item_ids, category_ids, histories, history_categories)
        lengths = inputs["seq_len"]
        scores = np.empty(len(lengths), np.float32)
        attention = [None] * len(lengths)
        for length, rows in self._batches(lengths):
            part = {name: x[rows, :length] if x.ndim == 2 else x[rows] for name, x in inputs.items()}
            y_hat, weights = self.infer(part)  # [rows, 2], [rows, length]
            scores[rows] = y_hat[:, 0]
            for i, row in zip(rows, weights, strict=True):
                attention[i] = row[: lengths[i]].copy()
        return scores, attention

    def infer(self, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Run one padded batch, by input name; returns y_hat [B, 2] and attention [B, T]. T selects the graph."""
        rows, length = inputs["mid_his"].shape
        inputs = {name: np.ascontiguousarray(values) for name, values in inputs.items()}  # requests read them in place
        result = {"y_hat": np.empty((rows, 2), np.float32), "attention": np.empty((rows, length), np.float32)}
        with self._lock:
            requests = self._graph(length)[1]
            pieces = self._pieces(rows, len(requests))
            if len(pieces) == 1:  # a single piece runs in this thread, which is faster than in another
                requests[0].infer(inputs, share_inputs=True)
                _copy_result(requests[0], result, pieces[0])
            else:
                _run_in_parallel(requests, inputs, result, pieces)
        return result["y_hat"], result["attention"]

    def compiled(self, length: int) -> ov.CompiledModel:
        """The graph for exactly `length` steps, compiled on its first use."""
        with self._lock:
            return self._graph(length)[0]

    def _graph(self, length: int) -> tuple[ov.CompiledModel, list[ov.InferRequest]]:
        """The graph for `length` steps, and as many requests as the device runs best in parallel."""
        if length not in self._graphs:
            graph = shorten(self.model, length)
            compiled = ov.Core().compile_model(graph, self.device, self.properties)
            count = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
            self._graphs[length] = compiled, [compiled.create_infer_request() for _ in range(count)]
        return self._graphs[length]

    def _pieces(self, rows: int, streams: int) -> list[slice]:
        """The pieces of a batch that run in parallel: a single one when scores depend on the batch."""
        if not self.independent:
            return [slice(rows)]
        smallest, largest = PIECE
        rounds = math.ceil(rows / (largest * streams))
        count = max(1, min(rounds * streams, rows // smallest))
        edges = [rows * i // count for i in range(count + 1)]
        return [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]

    def _batches(self, lengths: np.ndarray):
        """Steps of the graph and indices of the rows, for each inference."""
        if not self.independent:  # batch statistics and padding count: all rows run at once, in the fewest steps
            yield int(lengths.max()), np.arange(len(lengths))
            return
        buckets = np.array(sorted({max(1, round(part * self.length)) for part in STEPS}))
        bucket = np.searchsorted(buckets, lengths)
        for which in np.unique(bucket):
            yield int(buckets[which]), np.flatnonzero(bucket == which)

    def _inputs(self, user_ids, item_ids, category_ids, histories, history_categories) -> dict[str, np.ndarray]:
        """The model's inputs for checked rows, padded to its length."""
        singles = {"user_ids": user_ids, "item_ids": item_ids, "category_ids": category_ids}
        several = {"histories": histories, "history_categories": history_categories}
        arguments = {name: list(values) for name, values in (singles | several).items()}
        counts = {name: len(values) for name, values in arguments.items()}
        if not counts["user_ids"] or len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise ValueError(f"Every row needs a user, an item, a category and a history; the rows given: {listed}.")
        limits = (self.users, self.items, self.categories, self.items, self.categories)
        ids = [_flat_ids(name, values, limit) for (name, values), limit in zip(arguments.items(), limits, strict=True)]
        for name, (_, sizes) in zip(singles, ids, strict=False):
            if (wrong := sizes != 1).any():
                row = wrong.argmax()
                raise ValueError(f"Row {row} of {name} holds {sizes[row]} ids. Give it one.")
        (history, lengths), (categories, category_counts) = ids[3:]  # items of all rows, and [batch] each
        if not lengths.all():
            row = lengths.argmin()
            raise ValueError(f"Row {row} has an empty history. Give it at least one item, or leave the row out.")
        if (wrong := lengths != category_counts).any():
            row = wrong.argmax()
            raise ValueError(
                f"Row {row} has {lengths[row]} items in its history and {category_counts[row]} categories. "
                "Give each item its category."
            )
        from_end = np.repeat(lengths.cumsum(), lengths) - np.arange(len(history))
        latest = from_end <= self.length
        seq_len = np.minimum(lengths, self.length)  # [batch]
        present = np.arange(self.length) < seq_len[:, None]  # [batch, steps]
        inputs = {name: values for name, (values, _) in zip(("uid", "mid", "cat"), ids, strict=False)}
        for name, values in (("mid_his", history), ("cat_his", categories)):
            inputs[name] = np.zeros(present.shape, np.int64)
            inputs[name][present] = values[latest]
        return inputs | {"mask": present.astype(np.float32), "seq_len": seq_len}


def _flat_ids(name: str, rows: list, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all rows in one int64 array, and how many each row has.

    Raises a ValueError that names the first row with a value that is no whole number, or not under `limit`.
    """
    arrays = []
    for number, values in enumerate(rows):
        try:
            arrays.append(np.asarray(values, np.float64).reshape(-1))
        except (TypeError, ValueError):
            raise ValueError(f"Row {number} of {name} is {values!r}: give whole numbers.") from None
    sizes = np.array([array.size for array in arrays])
    numbers = np.concatenate(arrays)
    whole = np.isfinite(numbers) & (numbers == np.floor(numbers))
    known = (numbers >= 0) & (numbers < limit)
    if not (whole & known).all():
        first = (whole & known).argmin()
        row, value = np.searchsorted(sizes.cumsum(), first, "right"), numbers[first]
        if not whole[first]:
            raise ValueError(f"Row {row} of {name} holds {value}, which is no id: give whole numbers.")
        raise ValueError(
            f"Row {row} of {name} holds the id {int(value)}, which the model does not know: "
            f"it has 0 to {limit - 1}. Leave the row out, or train a model that knows it."
        )
    return numbers.astype(np.int64), sizes


def _run_in_parallel(
    requests: Sequence[ov.InferRequest],
    inputs: dict[str, np.ndarray],
    result: dict[str, np.ndarray],
    pieces: Sequence[slice],
) -> None:
    """Run the pieces of a batch, each request one after another of them, and fill the rows of `result`.

    An AsyncInferQueue would do the same. But its callbacks are Python objects, and a model that is deleted just after
    they ran can wait forever: for a thread that waits for Python's lock.
    """
    count = len(requests)
    for number, piece in enumerate(pieces):
        request = requests[number % count]
        if number >= count:
            request.wait()
            _copy_result(request, result, pieces[number - count])
        request.start_async({name: values[piece] for name, values in inputs.items()}, share_inputs=True)
    for number in range(max(0, len(pieces) - count), len(pieces)):
        requests[number % count].wait()
        _copy_result(requests[number % count], result, pieces[number])


def _copy_result(request: ov.InferRequest, result: dict[str, np.ndarray], piece: slice) -> None:
    """Copy the outputs of a piece to its rows in the outputs of the batch."""
    for name, values in result.items():
        values[piece] = request.get_tensor(name).data
