"""Figures of a graph: the neighbourhood of one node, before and after a change."""

from __future__ import annotations

import openvino as ov
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from notebooks.graph_customization.pipeline import is_head

FILL = {"Constant": "#e8edf3", "Result": "#e3f1e5"}
NEW, PLAIN, INK = "#ffd9a0", "#ffffff", "#23303f"  # new nodes, other nodes, lines and text


def find_head(model: ov.Model) -> ov.Node:
    """The output layer of a language model. Raises ValueError when there is none."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul" and is_head(node.output(0)):
            return node
    raise ValueError(f"{model.get_friendly_name()} has no output layer to draw.")


def before_and_after(
    before: ov.Model, after: ov.Model, focus: str = "", up: int = 2, down: int = 3, replaced: str = ""
) -> Figure:
    """Draw the neighbourhood of the node `focus` (by default the output layer) in both models, new nodes in colour.

    up, down: number of operations to follow towards the inputs and the results. replaced: Constants whose name starts
    with it count as new in the second panel. Shape and axis arguments (integer constants) are left out. Raises
    ValueError when a model has no such node.
    """
    focus = focus or find_head(before).get_friendly_name()
    known = {node.get_friendly_name() for node in before.get_ops()}
    graphs = [_neighbourhood(_named(model, focus), up, down) for model in (before, after)]
    levels = {row for rows, _ in graphs for row, _ in rows.values()}
    figure = Figure(figsize=(9, 0.4 + 0.75 * len(levels)), layout="constrained")
    panels = zip(figure.subplots(1, 2), ("before", "after"), graphs, strict=True)
    for axes, title, (rows, edges) in panels:
        axes.set_title(title, color=INK)
        new = {name for name in rows if name not in known}
        if title == "after" and replaced:
            new |= {name for name in rows if name.startswith(replaced) and rows[name][1].get_type_name() == "Constant"}
        _draw(axes, rows, edges, new)
        axes.set(xlim=(0, 1), ylim=(-max(levels) - 0.5, -min(levels) + 0.5))
    return figure


def _named(model: ov.Model, name: str) -> ov.Node:
    for node in model.get_ops():
        if node.get_friendly_name() == name:
            return node
    raise ValueError(f"{model.get_friendly_name()} has no node named {name}.")


def _neighbourhood(focus: ov.Node, up: int, down: int) -> tuple[dict[str, tuple[int, ov.Node]], list]:
    """Nodes by name with their row (0 for the focus, negative for sources, positive for consumers), and edges."""
    rows, edges = {focus.get_friendly_name(): (0, focus)}, []
    frontier = [focus]
    for row in range(1, down + 1):
        links = [(node, port.get_node()) for node in frontier for o in node.outputs() for port in o.get_target_inputs()]
        for _, target in links:
            rows.setdefault(target.get_friendly_name(), (row, target))
        edges += links
        frontier = [target for _, target in links]
    frontier = [focus]
    for row in range(1, up + 1):
        links = [(value.get_node(), node) for node in frontier for value in node.input_values()]
        links = [(source, node) for source, node in links if not _is_argument(source)]
        for source, _ in links:
            rows.setdefault(source.get_friendly_name(), (-row, source))
        edges += links
        frontier = [source for source, _ in links]
    return rows, edges


def _is_argument(node: ov.Node) -> bool:
    """Whether a node is an argument of an operation, such as the axes of a Slice or the shape of a Reshape."""
    return node.get_type_name() == "Constant" and node.get_element_type() in (ov.Type.i32, ov.Type.i64)


def _draw(axes: Axes, rows: dict[str, tuple[int, ov.Node]], edges: list, new: set[str]) -> None:
    levels: dict[int, list[str]] = {}
    for name, (row, _) in rows.items():
        levels.setdefault(row, []).append(name)
    positions = {
        name: ((column + 0.5) / len(names), -row) for row, names in levels.items() for column, name in enumerate(names)
    }
    for source, target in edges:
        arrow = {"arrowstyle": "-|>", "color": INK, "shrinkA": 14, "shrinkB": 15, "linewidth": 0.9}
        ends = (positions[target.get_friendly_name()], positions[source.get_friendly_name()])
        axes.annotate("", *ends, arrowprops=arrow)
    for name, (_, node) in rows.items():
        kind = node.get_type_name()
        fill = NEW if name in new else FILL.get(kind, PLAIN)
        box = {"boxstyle": "round,pad=0.35", "facecolor": fill, "edgecolor": INK, "linewidth": 0.8}
        axes.text(*positions[name], _label(node), ha="center", va="center", fontsize=7.5, color=INK, bbox=box)
    axes.axis("off")


def _label(node: ov.Node) -> str:
    value = node.output(0) if node.get_output_size() else node.input_value(0)
    kind = value.get_element_type().get_type_name()
    shape = ", ".join(_dimension(size) for size in value.get_partial_shape())
    return f"{node.get_type_name()}\n{kind} [{shape}]"


def _dimension(size: ov.Dimension) -> str:
    if size.is_static:
        return str(size)
    return "?" if size.get_max_length() < 0 else f"≤{size.get_max_length()}"
