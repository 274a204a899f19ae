"""Figures: the operations of one layer and what the processor executes for them; what a conversion takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import openvino as ov
from matplotlib.figure import Figure

from notebooks.llm_from_opset.pipeline import Checkpoint, Precision, build
from utils.charts import COLOURS, FILL, INK, LINE, PEER, PICTURE, TEXT, VOICE, box
from utils.paths import notebook_dir
from utils.tables import number

FILLS = {
    "RMS": VOICE,
    "RoPE": TEXT,
    "ScaledDotProductAttention": "#ffd9a0",
    "FullyConnected": PICTURE,
    "LLMMLP": PICTURE,
}
SHOWN = {*FILLS, "MemoryInput", "Eltwise", "Transpose", "MatMul", "Softmax"}


class Executed(NamedTuple):
    """An executed operation; sources: the types of the graph's operations that it stands for; weights: their type."""

    kind: str
    name: str
    sources: list[str]
    weights: str


def first_layer(checkpoint: str | Path, precision: Precision) -> ov.Model:
    """The model of a checkpoint's folder with its first layer only."""
    source = Checkpoint(checkpoint)
    names = [name for name in source if not re.search(r"layers\.[1-9]", name)]
    count = "num_layers" if "num_layers" in source.config else "num_hidden_layers"
    return build({**source.config, count: 1}, {name: source[name] for name in names}, precision)


def executed(model: ov.Model, device: str = "CPU") -> list[Executed]:
    """What a device executes for the layer of a `first_layer`, in order, without shapes, positions and mask."""
    nodes = ov.Core().compile_model(model, device).get_runtime_model().get_ops()
    nodes = sorted((node for node in nodes if _info(node, "execOrder")), key=lambda node: int(_info(node, "execOrder")))
    anchors = {
        name: node.get_friendly_name() for node in nodes for name in _info(node, "originalLayersNames").split(",")
    }
    anchors |= {node.get_friendly_name(): node.get_friendly_name() for node in nodes}
    operations = model.get_ordered_ops()
    order = {operation.get_friendly_name(): i for i, operation in enumerate(operations)}
    sources: dict[str, list[str]] = {}
    for operation in operations:
        if operation.get_type_name() not in ("Constant", "Parameter", "Result"):
            sources.setdefault(_owner(operation, anchors, order), []).append(operation.get_type_name())
    norms = [i for i, node in enumerate(nodes) if _info(node, "layerType") == "RMS"]
    inside, rows = {nodes[norms[0]].get_friendly_name()}, []  # what depends on the first norm
    for node in nodes[: norms[-1]]:
        name, kind = node.get_friendly_name(), _info(node, "layerType")
        inputs = [value.get_node() for value in node.input_values()]
        if inside & {one.get_friendly_name() for one in inputs}:
            inside.add(name)
        if kind in SHOWN and (name in inside or kind == "MemoryInput"):
            types = [_info(one, "outputPrecisions") for one in inputs if _info(one, "layerType") == "Const"]
            rows.append(Executed(kind, name, sources.get(name, []), types[0] if types else ""))
    return rows


def _info(node: ov.Node, key: str) -> str:
    info = node.get_rt_info()
    return info[key].astype(str) if key in info else ""


def _owner(operation: ov.Node, anchors: Mapping[str, str], order: Mapping[str, int]) -> str:
    """The name of the executed operation that an operation of the graph is a part of: its own, or its first consumer's.

    `get_target_inputs` is a set, so `order` says which consumer is the first; a state's `Assign` consumes only a copy.
    """
    while operation.get_friendly_name() not in anchors:
        targets = [target.get_node() for output in operation.outputs() for target in output.get_target_inputs()]
        targets = [target for target in targets if target.get_type_name() != "Assign"]
        if not targets:
            return ""
        operation = min(targets, key=lambda target: order[target.get_friendly_name()])
    return anchors[operation.get_friendly_name()]


def fusion(rows: Iterable[Executed]) -> Figure:
    """The operations of a layer on the left, and to the right the operation that is executed for each group of them."""
    rows = list(rows)
    figure = Figure(figsize=(9, 0.34 * len(rows) + 0.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(rows):
        counts = Counter(row.sources)
        text = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in counts.items())
        axes.text(0, -i, fill(text, 70), va="center", fontsize=9, color=INK)
        name = row.name.rpartition(".")[2] if "." in row.name else ""
        axes.annotate("", (7, -i), (6.5, -i), arrowprops={"arrowstyle": "-|>", "color": LINE})
        box(axes, 8.5, -i, f"{row.kind} {name}".strip(), FILLS.get(row.kind, FILL))
        axes.text(10.2, -i, f"{row.weights} weights" if name else "", va="center", fontsize=9, color=INK)
    before, after = sum(len(row.sources) for row in rows), len(rows)
    axes.set_title(f"in the graph: {before} operations, executed: {after}", fontsize=10, color=INK, loc="left")
    axes.set(xlim=(0, 11.6), ylim=(0.6 - len(rows), 0.6))
    axes.axis("off")
    return figure


def conversions(rows: Iterable[Mapping], notes: Mapping) -> Figure:
    """Seconds and memory of each conversion of speed rows: the process' own memory, and with the pages of files."""
    rows = [row for row in rows if row["workload"].startswith("conversion")]
    sizes = list(dict.fromkeys(row["workload"] for row in rows))
    figure = Figure(figsize=(9, 2.4 * len(sizes)), dpi=110, layout="constrained")
    for (time, memory), size in zip(figure.subplots(len(sizes), 2, squeeze=False), sizes, strict=True):
        own = [row for row in rows if row["workload"] == size]
        names = [f"{row['runtime'].removeprefix('openvino ')} {row['precision']}" for row in own]
        colours = [COLOURS[0] if name.startswith("built") else PEER for name in names]
        anonymous = [notes[f"{size}: own memory of {name}, MB"] / 1e3 for name in names]
        for axes, values, title in (
            (time, [row["median_ms"] / 1e3 for row in own], f"{size}, s"),
            (memory, anonymous, "the process' own memory, GB"),
        ):
            bars = axes.barh(names, values, color=colours)
            axes.bar_label(bars, [number(value) for value in values], padding=4, fontsize=9, color=INK)
            axes.set_title(title, fontsize=10, color=INK, loc="left")
            axes.set_xlim(0, 1.2 * max(values))
            axes.invert_yaxis()
            axes.tick_params(labelsize=9)
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    from notebooks.llm_from_opset.convert import checkpoint_folder

    path = notebook_dir(__spec__.name) / "fusion.png"
    fusion(executed(first_layer(checkpoint_folder(), "INT8"))).savefig(path)
    print(f"Written to {path.name}.")


if __name__ == "__main__":
    main()
