"""Figures: what the output layer computes, a graph before and after a change, and what the slice saves.

`python -m notebooks.graph_customization.figures` draws savings.png from results/bench.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO

import openvino as ov
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from notebooks.graph_customization.pipeline import is_head
from utils import report
from utils.charts import FILL, INK, LINE, PICTURE, arrows, box
from utils.paths import notebook_dir
from utils.tables import number

CONSTANT, RESULT, NEW = "#e8edf3", "#e3f1e5", "#ffd9a0"  # fills of boxes
EXPORTED, CUSTOMIZED = "#8793a1", "#d97a00"  # lines and bars
ROW_INCHES = 0.62
VOCABULARIES = "vocabulary 49,152", "vocabulary 151,936"  # ends of workloads

Point = tuple[int, float, float]  # prompt tokens, first token in ms, memory in MB


def show_as_small_png() -> None:
    """In a notebook: show each figure as a PNG of 64 colours, which takes a quarter of the space."""
    from IPython import get_ipython

    get_ipython().display_formatter.formatters["image/png"].for_type(Figure, _small_png)


def _small_png(figure: Figure) -> bytes:
    whole, small = BytesIO(), BytesIO()
    figure.savefig(whole, format="png", dpi=110)
    Image.open(whole).convert("RGB").quantize(64).save(small, "png", optimize=True)
    return small.getvalue()


# --- What the output layer computes ------------------------------------------------------------------------------


def output_layer(tokens: int = 37, hidden: int = 576, vocabulary: int = 49_152, layers: int = 30) -> Figure:
    """The model from token ids to logits for a prompt, with a row for each token: only the last one is read."""
    figure = Figure(figsize=(9, 3.1), dpi=110, layout="constrained")
    axes = figure.subplots()
    steps = [
        (0.55, f"token ids\n[1, {tokens}]", PICTURE),
        (2.05, f"embedding\n[1, {tokens}, {hidden}]", FILL),
        (3.85, f"{layers} layers:\nattention and MLP\n[1, {tokens}, {hidden}]", FILL),
        (5.95, f"output layer:\nMatMul with\n[{vocabulary:,}, {hidden}]", FILL),
    ]
    boxes = [box(axes, x, 1.6, label, fill) for x, label, fill in steps]
    arrows(axes, boxes)
    state = box(axes, 3.85, 0.15, "state: keys and values\nof all tokens so far", CONSTANT)
    arrows(axes, [boxes[2], state])
    left, width, height, shown = 7.45, 1.75, 0.27, 9
    top = 1.6 + shown * height / 2
    for row in range(shown):
        last = row == shown - 1
        corner = (left, top - (row + 1) * height)
        axes.add_patch(Rectangle(corner, width, height * 0.86, facecolor=NEW if last else CONSTANT, edgecolor=LINE))
        label = {0: "token 1", 1: "token 2", 4: "...", shown - 2: f"token {tokens - 1}", shown - 1: f"token {tokens}"}
        axes.text(left + width / 2, corner[1] + height * 0.4, label.get(row, ""), ha="center", va="center", fontsize=9)
    look = {"arrowstyle": "-|>", "color": LINE, "linewidth": 0.9, "patchA": boxes[3].get_bbox_patch()}
    axes.annotate("", (left, 1.6), boxes[3].get_position(), arrowprops=look)
    axes.text(left, top + 0.1, f"logits [1, {tokens}, {vocabulary:,}]", fontsize=9, color=INK)
    axes.text(
        left, top - shown * height - 0.28, "only this row\nchooses the next token", fontsize=9, color=INK, va="top"
    )
    axes.set(xlim=(-0.2, 9.4), ylim=(-0.55, 3.2))
    axes.axis("off")
    return figure


# --- A graph before and after a change ---------------------------------------------------------------------------


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

    up, down: number of operations to follow towards the inputs and the results; new ones do not count. replaced:
    Constants whose name starts with it count as new in the second panel. Shape and axis arguments (integer constants)
    are left out. Raises ValueError when a model has no such node.
    """
    focus = focus or find_head(before).get_friendly_name()
    known = {node.get_friendly_name() for node in before.get_ops()}
    rows, edges, nodes = _neighbourhood(_named(after, focus), up, down, known)
    rows_before, edges_before, nodes_before = _neighbourhood(_named(before, focus), up, down, known)
    places = _places(rows_before) | _places(rows)  # a node that is in both has one place
    levels = {y for _, y in places.values()}
    figure = Figure(figsize=(9, 0.5 + ROW_INCHES * len(levels)), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw(left, places, edges_before, nodes_before, set())
    new = set(rows) - known
    if replaced:
        new |= {name for name in rows if name.startswith(replaced) and nodes[name].get_type_name() == "Constant"}
    _draw(right, places, edges, nodes, new)
    for axes, title in ((left, "before"), (right, "after")):
        axes.set_title(title, fontsize=11, color=INK)
        axes.set(xlim=(0, 1), ylim=(min(levels) - 0.5, max(levels) + 0.5))
        axes.axis("off")
    return figure


def _named(model: ov.Model, name: str) -> ov.Node:
    for node in model.get_ops():
        if node.get_friendly_name() == name:
            return node
    raise ValueError(f"{model.get_friendly_name()} has no node named {name}.")


def _neighbourhood(
    focus: ov.Node, up: int, down: int, known: set[str]
) -> tuple[dict[str, int], list[tuple[str, str]], dict[str, ov.Node]]:
    """Rows of nodes by name (0 for the focus, negative for sources, positive for consumers), edges, and the nodes.

    known: names of nodes that count as a step of `up` or `down`.
    """
    nodes = {focus.get_friendly_name(): focus}
    rows, edges = {focus.get_friendly_name(): 0}, []
    for direction, steps in ((1, down), (-1, up)):
        frontier = [(focus, 0, steps)]  # node, row, steps left
        while frontier:
            node, row, left = frontier.pop(0)
            if left == 0:
                continue
            for other in _consumers(node) if direction == 1 else _sources(node):
                name = other.get_friendly_name()
                ends = (node.get_friendly_name(), name)
                edges.append(ends if direction == 1 else ends[::-1])
                if name not in nodes:
                    nodes[name], rows[name] = other, row + direction
                    frontier.append((other, row + direction, left - (name in known)))
    return rows, edges, nodes


def _consumers(node: ov.Node) -> list[ov.Node]:
    return [port.get_node() for output in node.outputs() for port in output.get_target_inputs()]


def _sources(node: ov.Node) -> list[ov.Node]:
    """The nodes that an operation reads, without arguments such as the axes of a Slice or the shape of a Reshape."""
    sources = [value.get_node() for value in node.input_values()]
    integers = (ov.Type.i32, ov.Type.i64)
    return [x for x in sources if x.get_type_name() != "Constant" or x.get_element_type() not in integers]


def _places(rows: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """Where nodes are drawn, by name: x from 0 to 1, and y, which falls from row to row."""
    levels: dict[int, list[str]] = {}
    for name, row in rows.items():
        levels.setdefault(row, []).append(name)
    return {
        name: ((column + 0.5) / len(names), -row) for row, names in levels.items() for column, name in enumerate(names)
    }


def _draw(
    axes: Axes,
    places: Mapping[str, tuple[float, float]],
    edges: Iterable[tuple[str, str]],
    nodes: Mapping[str, ov.Node],
    new: set[str],
) -> None:
    fills = {"Constant": CONSTANT, "Result": RESULT}
    boxes = {}
    for name, node in nodes.items():
        fill = NEW if name in new else fills.get(node.get_type_name(), FILL)
        boxes[name] = box(axes, *places[name], _label(node), fill)
    for source, target in edges:
        arrows(axes, [boxes[source], boxes[target]])


def _label(node: ov.Node) -> str:
    value = node.output(0) if node.get_output_size() else node.input_value(0)
    kind = value.get_element_type().get_type_name()
    shape = ", ".join(_dimension(size) for size in value.get_partial_shape())
    return f"{node.get_type_name()}\n{kind} [{shape}]"


def _dimension(size: ov.Dimension) -> str:
    if size.is_static:
        return str(size)
    return "?" if size.get_max_length() < 0 else f"≤{size.get_max_length()}"


# --- What the slice saves ----------------------------------------------------------------------------------------


def savings(rows: Iterable[Mapping], vocabularies: Sequence[str] = VOCABULARIES) -> Figure:
    """Time and memory for reading a prompt against its length, with and without the slice.

    rows: speed rows of `measuring.bench.prompt_curve`. vocabularies: the end of the rows' workloads; each gets two
    panels, whose titles name it when there are several.
    """
    rows = list(rows)
    figure = Figure(figsize=(9, 2.9 * len(vocabularies)), dpi=110, layout="constrained")
    panels = figure.subplots(len(vocabularies), 2, squeeze=False)
    for (time, memory), vocabulary in zip(panels, vocabularies, strict=True):
        lines = {}
        for name in ("base", "sliced"):
            own = [r for r in rows if r["runtime"] == f"openvino {name}" and r["workload"].endswith(vocabulary)]
            lines[name] = [(int(r["workload"].split()[1]), r["median_ms"], r["peak_rss_mb"]) for r in own]
        _first_token(time, lines["base"], lines["sliced"])
        base, sliced = ([(tokens, mb / 1e3) for tokens, _, mb in points] for points in lines.values())
        _two_lines(memory, base, sliced, "peak memory of the process", "GB")
        for axes in (time, memory) if len(vocabularies) > 1 else ():
            axes.set_title(f"{vocabulary}: {axes.get_title(loc='left')}", fontsize=10, color=INK, loc="left")
    return figure


def prompt_curve(exported: Sequence[Point], customized: Sequence[Point]) -> Figure:
    """Time to the first token and memory of the output for the prompt, against the prompt length."""
    figure = Figure(figsize=(9, 2.7), dpi=110, layout="constrained")
    time, memory = figure.subplots(1, 2)
    _first_token(time, exported, customized)
    megabytes = ([(tokens, mb) for tokens, _, mb in points] for points in (exported, customized))
    _two_lines(memory, *megabytes, "output for the prompt", "MB")
    return figure


def race(exported: Point, customized: Point | None) -> Figure:
    """Bars of the time to the first token and of the memory of the output, for one prompt."""
    figure = Figure(figsize=(9, 1.5), dpi=110, layout="constrained")
    titles = (f"first token after {exported[0]} prompt tokens, ms", "output for the prompt, MB")
    for axes, title, place in zip(figure.subplots(1, 2), titles, (1, 2), strict=True):
        bars = {"as exported": exported[place]} | ({"customized": customized[place]} if customized else {})
        drawn = axes.barh(list(bars), list(bars.values()), color=[EXPORTED, CUSTOMIZED][: len(bars)], height=0.6)
        axes.bar_label(drawn, [number(value) for value in bars.values()], padding=4, fontsize=10, color=INK)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_xlim(0, 1.2 * max(bars.values()))
        axes.set_ylim(1.5, -0.5)
        axes.set_xticks([])
        axes.tick_params(labelsize=10, length=0)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    return figure


def _first_token(axes: Axes, exported: Sequence[Point], customized: Sequence[Point]) -> None:
    exported, customized = ([(tokens, ms / 1e3) for tokens, ms, _ in points] for points in (exported, customized))
    _two_lines(axes, exported, customized, "time to the first token", "s")


def _two_lines(
    axes: Axes, exported: Sequence[tuple[int, float]], customized: Sequence[tuple[int, float]], title: str, unit: str
) -> None:
    """Both lines, (prompt tokens, value), with their names and last values at their right ends."""
    longest = max([tokens for tokens, _ in (*exported, *customized)], default=1)
    top = 1.15 * max([value for _, value in (*exported, *customized)], default=1)
    for name, points, colour in (("as exported", exported, EXPORTED), ("customized", customized, CUSTOMIZED)):
        lengths, values = [tokens for tokens, _ in points], [value for _, value in points]
        axes.plot(lengths, values, color=colour, marker="o", markersize=4)
        if points:
            low = values[-1] < 0.1 * top  # the name would cover the axis
            label = f" {name}\n {number(values[-1])} {unit}"
            axes.text(lengths[-1], values[-1], label, color=colour, fontsize=9, va="bottom" if low else "center")
    axes.set_title(f"{title}, {unit}", fontsize=10, color=INK, loc="left")
    axes.set(xlim=(0, 1.35 * longest), ylim=(0, top), xticks=[round(longest * part / 4) for part in range(5)])
    axes.set_xlabel("prompt, tokens", fontsize=9, color=INK)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    rows = report.load(report.BENCH / "graph_customization.json")["speed"]
    path = notebook_dir(__spec__.name) / "savings.png"
    savings(rows, ["vocabulary 49,152"]).savefig(path)
    print(f"Written to {path.name}.")


if __name__ == "__main__":
    main()
