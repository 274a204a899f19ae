"""The notebook's figures: what two processors execute, and how far converted models are from x86 on emulated ARM."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from matplotlib.figure import Figure

from notebooks.arm.pipeline import FAMILIES, Layer, Run
from utils import report
from utils.arm import sweep
from utils.charts import COLOURS, FILL, INK, LINE, PICTURE, TEXT, VOICE, arrows, box
from utils.paths import notebook_dir

COLOUR_OF = {
    FAMILIES["acl"]: TEXT,
    FAMILIES["brg"]: PICTURE,
    FAMILIES["jit"]: VOICE,
    FAMILIES["ref"]: "#f3d4d4",
}
SMALLEST = {"f32": 1e-8, "f16": 1e-5}  # where smaller differences are drawn


def graphs(runs: Mapping[str, Run]) -> Figure:
    """A column for each run: the executed layers from top to bottom, each with its kernel and precision, without what
    only computes shapes."""
    columns = {name: [layer for layer in run.layers if _is_shown(layer)] for name, run in runs.items()}
    longest = max(map(len, columns.values()))
    figure = Figure(figsize=(9, 0.36 * longest + 1), dpi=110, layout="constrained")
    for axes, (name, column) in zip(figure.subplots(1, len(runs), squeeze=False)[0], columns.items(), strict=True):
        boxes = [box(axes, 0, -i, _label(layer), _colour(layer)) for i, layer in enumerate(column)]
        arrows(axes, boxes)
        axes.set_title(name, fontsize=10, color=INK)
        axes.set(xlim=(-1, 1), ylim=(0.3 - longest, 0.7))
        axes.axis("off")
    families = dict.fromkeys(layer.family for own in columns.values() for layer in own if _colour(layer) != FILL)
    handles = [axes.scatter([], [], marker="s", s=80, color=COLOUR_OF[name], edgecolor=INK, label=name)
               for name in families]  # fmt: skip
    figure.legend(handles=handles, fontsize=9, ncols=4, loc="outside lower center", frameon=False)
    return figure


def _is_shown(layer: Layer) -> bool:
    of_shapes = layer.precision == "i32" or "_i32_" in layer.name
    return layer.kind not in ("Reshape", "ShapeOf", "Concatenation") and not of_shapes


def _label(layer: Layer) -> str:
    if types := re.search(r"_([fui]\d+)_([fui]\d+)_", layer.name) if layer.kind == "Reorder" else None:
        return f"Reorder: from {types[1]} to {types[2]}"
    if layer.kind == "Reorder":
        return "Reorder: another order of the axes"
    return f"{layer.kind}: {layer.kernel} {layer.precision}".replace(": unknown", "")


def _colour(layer: Layer) -> str:
    return COLOUR_OF.get(layer.family, FILL)


def collection(results: Mapping, width: float = 9, height: float = 4.5) -> Figure:
    """A point for each converted model: its difference from x86 on emulated ARM in f32 and in f16, both logarithmic.

    results: what `make arm` wrote. Dotted lines are the limits. Beyond them, of the conversions of one model (their
    names up to a hyphen) the one furthest to the right has its name.
    """
    small, named = width < 6, {}
    figure = Figure(figsize=(width, height), dpi=80 if small else 110, layout="constrained")
    axes = figure.subplots()
    for name, row in results["models"].items():
        if name.startswith("smallest") or "difference" not in row["f32"] or "difference" not in row["f16"]:
            continue
        x, y = (max(row[precision]["difference"], smallest) for precision, smallest in SMALLEST.items())
        right = all(row[precision]["result"] == "agrees" for precision in sweep.PRECISIONS)
        axes.scatter(x, y, s=40, color=COLOURS[0] if right else COLOURS[1], alpha=0.7)
        conversion = name.partition("/")[0]
        if not right and not small:
            model = conversion.partition("-")[0]
            named[model] = max(named.get(model, (0, 0, "")), (x, y, conversion))
    for x, y, conversion in named.values():
        across, side = (8, "left") if x < 0.05 and y < 0.65 else (-8, "right")
        up, end = (4, "bottom") if y > 0.65 or x < 0.05 else (-4, "top")
        look = {"textcoords": "offset points", "ha": side, "va": end, "fontsize": 9}
        axes.annotate(conversion, (x, y), (across, up), **look)
    axes.axvline(results["limits"]["f32"], color=LINE, linestyle=":")
    axes.axhline(results["limits"]["f16"], color=LINE, linestyle=":")
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("difference in f32", fontsize=13 if small else 9, color=INK)
    axes.set_ylabel("difference in f16", fontsize=13 if small else 9, color=INK)
    axes.tick_params(labelsize=11 if small else 9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    results, folder = json.loads(report.ARM.read_text(encoding="utf-8")), notebook_dir(__spec__.name)
    collection(results).savefig(folder / "collection.png")
    collection(results, 4, 2.5).savefig(folder / "thumbnail.jpg")
    print("Written to collection.png and thumbnail.jpg.")


if __name__ == "__main__":
    main()
