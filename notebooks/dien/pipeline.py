"""Click-through rates with a converted DIEN: `ClickModel(ir_path).score(...)`.

Needs openvino and numpy, nothing else: copy this file into your project.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino.passes import AnyInput, Manager, Matcher, MatcherPass, PassBase, WrapType

BATCH = 1024  # rows that one inference takes, where rows do not depend on each other
STEPS = (0.1, 0.25, 0.5, 1.0)  # shorter graphs, as parts of the length that the IR has


class SplitGates(MatcherPass):
    """VariadicSplit into equal parts -> Split, which the CPU plugin's fusion of recurrent cells looks for."""

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
    """Run transformation passes on a model, which they change, and return it."""
    manager = Manager()
    for one in passes:
        manager.register_pass(one)
    manager.run_passes(model)
    return model


def shorten(model: ov.Model, length: int) -> ov.Model:
    """A copy of an unrolled model for histories of `length` steps; the weights are shared, not copied.

    The history is split into steps and the states are joined again: here the last steps of both are left out.
    Raises ValueError for a length that the model does not have.
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
            placeholder = ops.parameter([-1, length], np.float32)  # the shapes above are not yet what they will be
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
    """A converted DIEN. Graphs of a few lengths are compiled when first needed; `cache` keeps them on disk.

    ir_path: the .xml file that `convert` wrote. cache: a folder, by default `cache` beside the file; None keeps
    nothing. properties: OpenVINO's. The arithmetic is f32 unless they say otherwise: in bf16, which a CPU may choose by
    itself, the recurrent states lose too much (AUC falls by over 0.01). Raises ValueError for another file.
    """

    def __init__(self, ir_path: str | Path, device: str = "CPU", cache: str | Path | None = "beside", **properties):
        ir_path = Path(ir_path)
        if not ir_path.is_file():
            raise ValueError(f"{ir_path} is not there. Give the .xml file that convert() wrote.")
        self.model = ov.Core().read_model(ir_path)
        if not self.model.has_rt_info(["dien", "sizes"]):
            raise ValueError(f"{ir_path} is not a converted DIEN. Give the .xml file that convert() wrote.")
        sizes, self.independent, self.length = (
            self.model.get_rt_info(["dien", key]).value for key in ("sizes", "independent", "length")
        )
        self.users, self.items, self.categories = (int(size) for size in sizes.split())
        self.independent, self.length = self.independent == "True", int(self.length)
        self.device, self.properties = device, {"INFERENCE_PRECISION_HINT": "f32"} | properties
        if cache is not None:
            self.properties["CACHE_DIR"] = str(ir_path.parent / "cache" if cache == "beside" else cache)
        self._compiled: dict[int, ov.CompiledModel] = {}

    def score(self, user_ids, item_ids, category_ids, histories, history_categories) -> np.ndarray:
        """The probability of a click for each row, float32 [batch].

        user_ids, item_ids, category_ids: [batch]; histories, history_categories: one sequence of ids a row, oldest
        first, of any lengths; of a longer one than the IR was converted for, the latest items count. Raises
        ValueError naming the first row with an unknown id, an empty history, unequal lengths or NaN.
        """
        return self.explain(user_ids, item_ids, category_ids, histories, history_categories)[0]

    def explain(self, user_ids, item_ids, category_ids, histories, history_categories):
        """(scores [batch], attention: for each row an array over its history that sums to 1)."""
        rows = self._check(user_ids, item_ids, category_ids, histories, history_categories)
        lengths = np.array([len(row[3]) for row in rows])
        scores, attention = np.empty(len(rows), np.float32), [None] * len(rows)
        for length, chosen in self._batches(lengths):
            y_hat, weights = self.infer(self._pad([rows[i] for i in chosen], length))
            scores[chosen] = y_hat[:, 0]
            for i, row in zip(chosen, weights, strict=True):
                attention[i] = row[: lengths[i]].copy()
        return scores, attention

    def infer(self, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Run one padded batch, by input name: (y_hat [B, 2], attention [B, T]). T picks the compiled graph."""
        result = self.compiled(inputs["mid_his"].shape[1])(inputs)
        return result["y_hat"], result["attention"]

    def compiled(self, length: int) -> ov.CompiledModel:
        """The graph for exactly `length` steps, compiled now or before."""
        if length not in self._compiled:
            graph = shorten(self.model, length)
            self._compiled[length] = ov.Core().compile_model(graph, self.device, self.properties)
        return self._compiled[length]

    def _batches(self, lengths: np.ndarray):
        """(steps of the graph, rows) of each inference."""
        if not self.independent:  # the statistics are those of the batch, and padding counts: all rows, no more steps
            yield int(lengths.max()), np.arange(len(lengths))
            return
        buckets = np.array(sorted({max(1, round(part * self.length)) for part in STEPS}))
        bucket = np.searchsorted(buckets, lengths)
        for which in np.unique(bucket):
            rows = np.flatnonzero(bucket == which)
            for start in range(0, len(rows), BATCH):
                yield int(buckets[which]), rows[start : start + BATCH]

    def _pad(self, rows: list[tuple], length: int) -> dict[str, np.ndarray]:
        users, items, categories, histories, kinds = zip(*rows, strict=True)
        seq_len = np.array([len(history) for history in histories])
        mid_his, cat_his = (np.zeros((len(rows), length), np.int64) for _ in range(2))
        for i, (history, kind) in enumerate(zip(histories, kinds, strict=True)):
            mid_his[i, : len(history)], cat_his[i, : len(kind)] = history, kind
        single = {"uid": users, "mid": items, "cat": categories}
        inputs = {name: np.array(ids, np.int64) for name, ids in single.items()}
        mask = (np.arange(length) < seq_len[:, None]).astype(np.float32)
        return inputs | {"mid_his": mid_his, "cat_his": cat_his, "mask": mask, "seq_len": seq_len}

    def _check(self, user_ids, item_ids, category_ids, histories, history_categories) -> list[tuple]:
        """The rows, each as (user, item, category, history, its categories) of checked ids."""
        given = {
            "user_ids": user_ids,
            "item_ids": item_ids,
            "category_ids": category_ids,
            "histories": histories,
            "history_categories": history_categories,
        }
        given = {name: list(values) for name, values in given.items()}
        counts = {name: len(values) for name, values in given.items()}
        if not counts["user_ids"] or len(set(counts.values())) > 1:
            told = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise ValueError(f"Every row needs a user, an item, a category and a history; the rows given: {told}.")
        limits = (self.users, self.items, self.categories, self.items, self.categories)
        rows = []
        for number, row in enumerate(zip(*given.values(), strict=True)):
            user, item, category, history, kinds = (
                _ids(number, name, values, limit) for name, values, limit in zip(given, row, limits, strict=True)
            )
            for name, single in (("user_ids", user), ("item_ids", item), ("category_ids", category)):
                if single.size != 1:
                    raise ValueError(f"Row {number} of {name} holds {single.size} ids. Give it one.")
            if not len(history):
                raise ValueError(f"Row {number} has an empty history. Give it at least one item, or leave the row out.")
            if len(history) != len(kinds):
                raise ValueError(
                    f"Row {number} has {len(history)} items in its history and {len(kinds)} categories. "
                    "Give each item its category."
                )
            last = slice(-self.length, None)
            rows.append((user[0], item[0], category[0], history[last], kinds[last]))
        return rows


def _ids(row: int, name: str, values, limit: int) -> np.ndarray:
    """Ids [n] as int64. ValueError for what is no whole number, or not in the table of `limit` rows."""
    try:
        numbers = np.atleast_1d(np.asarray(values, np.float64)).reshape(-1)
    except (TypeError, ValueError):
        raise ValueError(f"Row {row} of {name} is {values!r}: give whole numbers.") from None
    whole = np.isfinite(numbers) & (numbers == np.floor(numbers))
    if not whole.all():
        raise ValueError(f"Row {row} of {name} holds {numbers[~whole][0]}, which is no id: give whole numbers.")
    unknown = (numbers < 0) | (numbers >= limit)
    if unknown.any():
        raise ValueError(
            f"Row {row} of {name} holds the id {int(numbers[unknown][0])}, which the model does not know: "
            f"it has 0 to {limit - 1}. Leave the row out, or train a model that knows it."
        )
    return numbers.astype(np.int64)
