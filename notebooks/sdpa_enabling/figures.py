"""Figures: the operations that attention executes, and time and memory against the length.

`python -m notebooks.sdpa_enabling.figures` draws states.png and thumbnail.jpg.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

import openvino as ov
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from notebooks.sdpa_enabling.convert import to_ir
from notebooks.sdpa_enabling.network import Attention
from notebooks.sdpa_enabling.pipeline import FUSED, fuse_attention, make_stateful
from utils.charts import COLOURS, FILL, INK, PEER, arrows, box
from utils.models.llm import FP32_PROPERTIES
from utils.paths import notebook_dir

HIGHLIGHT, CACHE = "#ffd9a0", "#e8edf3"
ATTENTION = "Subgraph of attention"
COLOUR_OF = {
    **dict.fromkeys(("MatMul", "Softmax", ATTENTION, FUSED), HIGHLIGHT),
    **dict.fromkeys(("MemoryInput", "MemoryOutput", "Gather", "Concatenation"), CACHE),
    **dict.fromkeys(("Eltwise", "Transpose"), FILL),
}
NAMES = {"MemoryInput": "read the cache", "MemoryOutput": "write the cache", "Concatenation": "Concat",
         ATTENTION: "Subgraph"}  # fmt: skip
CURVES = {"openvino by hand": COLOURS[1], "openvino Subgraph": "#5fa8d3", "openvino fused": "#1f4e79",
          "torch eager sdpa": INK, "torch.compile by hand": COLOURS[3], "onnxruntime by hand": PEER}  # fmt: skip


def executed(compiled: ov.CompiledModel) -> list[str]:
    """The types of the operations on queries, keys, values and scores, in the order in which they are executed."""
    nodes = compiled.get_runtime_model().get_ops()
    kinds = []
    for node in sorted(nodes, key=lambda node: int(node.get_rt_info()["execOrder"].astype(str))):
        info = node.get_rt_info()
        kind = info["layerType"].astype(str)
        if kind == "Subgraph" and "softmax" in info["originalLayersNames"].astype(str).lower():
            kind = ATTENTION
        if kind == "MemoryOutput" or kind in COLOUR_OF and len(node.get_output_partial_shape(0)) == 4:
            kinds.append(kind)
    return kinds


def operations(models: Mapping[str, ov.CompiledModel], width: float = 9, shown: Collection[str] = COLOUR_OF) -> Figure:
    """A column for each compiled model: its operations around attention, from top to bottom.

    width: in inches. shown: the types of operations that are drawn.
    """
    columns = {}
    for name, model in models.items():
        kinds = [kind for kind in executed(model) if kind in shown]
        columns[name] = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    longest = max(len(column) for column in columns.values())
    figure = Figure(figsize=(width, 0.36 * longest + 0.7), dpi=110, layout="constrained")
    for axes, (name, column) in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns.items(), strict=True):
        boxes = []
        for i, (kind, count) in enumerate(column):
            label = NAMES.get(kind, kind) + (f"  x {count}" if count > 1 else "")
            boxes.append(box(axes, 0, -i, label, COLOUR_OF[kind]))
        arrows(axes, boxes)
        axes.set_title(f"{name}: {sum(count for _, count in column)} operations", fontsize=10, color=INK)
        axes.set(xlim=(-1, 1), ylim=(0.3 - longest, 0.7))
        axes.axis("off")
    return figure


def curves(rows: Iterable[Mapping]) -> Figure:
    """In FP32, the time of reading, of one more token, and memory against the length; both axes are logarithmic."""
    rows = [row for row in rows if row["precision"] == "FP32"]
    figure = Figure(figsize=(9, 3.6), dpi=110, layout="constrained")
    panels = (("read ", "median_ms", "reading the text, ms"), ("one token after ", "median_ms", "one more token, ms"),
              ("read ", "peak_rss_mb", "peak memory, MB"))  # fmt: skip
    for axes, (workload, field, title) in zip(figure.subplots(1, 3), panels, strict=True):
        lengths: list[int] = []
        for runtime, colour in CURVES.items():
            own = [row for row in rows if row["runtime"] == runtime and row["workload"].startswith(workload)]
            places = [int(row["workload"].removeprefix(workload).split()[0]) for row in own]
            axes.plot(places, [row[field] for row in own], color=colour, marker="o", markersize=3, label=runtime)
            lengths = sorted({*lengths, *places})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_xlabel("tokens", fontsize=9, color=INK)
        axes.tick_params(labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, ncols=3, loc="outside lower center", frameon=False)
    return figure


def main() -> None:
    folder = notebook_dir(__spec__.name)
    layer = to_ir(Attention("masked_fill"))
    by_hand = layer.clone()
    make_stateful(by_hand)
    fused = by_hand.clone()
    fuse_attention(fused)
    models = {"by hand": by_hand, "without state": layer, "fused": fused}
    compiled = {name: ov.Core().compile_model(model, "CPU", FP32_PROPERTIES) for name, model in models.items()}
    operations(compiled).savefig(folder / "states.png")
    two = {name: compiled[name] for name in ("by hand", "fused")}
    small = operations(two, 4, ("MatMul", "Softmax", FUSED, "Eltwise", "MemoryInput"))
    small.set_size_inches(4, 2.5)
    small.savefig(folder / "thumbnail.jpg", dpi=80)
    print("Written to states.png and thumbnail.jpg.")


if __name__ == "__main__":
    main()
