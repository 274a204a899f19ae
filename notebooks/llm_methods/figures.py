"""Figures and tables of the guide, from measured rows. `python -m notebooks.llm_methods.figures` draws those of the
README, and writes its tables."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import openvino as ov
from matplotlib.figure import Figure
from openvino import opset13 as ops

from notebooks.llm_methods.pipeline import MECHANISMS, METHODS, compress, front, named
from utils import preflight
from utils.bench import BUSY_PERCENT
from utils.charts import COLOURS, INK, LINE, PEER
from utils.files import replaced
from utils.paths import ROOT, notebook_dir
from utils.tables import Table, number

FOLDER = notebook_dir(__spec__.name if __name__ == "__main__" else __name__)
PAPERS = FOLDER / "papers.csv"
ROWS = ROOT / "results" / "bench" / "llm_methods-rows.json"
LARGEST = 50.0  # perplexity; methods above it stand at the edge of the map
PALETTE = {
    "reading": INK,
    "8 bits": "#2a78b8",
    "4 bits in groups": "#b03a2e",
    "mixed precision": "#d97a00",
    "number formats": "#5f8f3c",
    "codebooks": "#8e5ea2",
    "scaling before rounding": "#c2589a",
    "error feedback": "#1f9e89",
    "low-rank correction": "#6b4c2a",
    "activation quantization": "#5fa8d3",
}
MARKED = re.compile(r"<!-- methods:(\w+) -->.*?<!-- /methods -->", re.DOTALL)


def papers() -> list[dict[str, str]]:
    """The papers of the technology updates: update, paper, url, mechanism, relation, note, methods."""
    with PAPERS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def method_map(rows: Iterable[Mapping], field: str = "tokens_per_s") -> Figure:
    """Weight methods by size of the model and perplexity, and by a field of speed and perplexity.

    The front is drawn as a line: no method has both less perplexity and a better value. Speed of a busy machine is left
    out.
    """
    rows = [row for row in rows if row.get("perplexity") is not None]
    timed = [row for row in rows if row.get(field) is not None and row.get("busy_percent", 0) <= BUSY_PERCENT]
    panels = {"model_mb": ("size of the weights, MB", False)}
    if timed:
        panels[field] = ("tokens per second", True)
    figure = Figure(figsize=(9, 1 + 3.4 * len(panels)), dpi=110, layout="constrained")
    all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (name, (label, more)) in zip(all_axes, panels.items(), strict=True):
        own = timed if name == field else [row for row in rows if row.get(name) is not None]
        best = sorted(front(own, {"perplexity": False, name: more}), key=lambda row: row[name])
        axes.plot([row[name] for row in best], [_y(row) for row in best], color=LINE, linewidth=1, zorder=1)
        for mechanism, colour in PALETTE.items():
            group = [row for row in own if named(row["name"]).mechanism == mechanism]
            axes.scatter([row[name] for row in group], [_y(row) for row in group], color=colour, s=26, zorder=2,
                         label="FP16" if mechanism == "reading" else mechanism)  # fmt: skip
        axes.set(xlabel=label, ylabel=f"perplexity ({LARGEST:.0f}: or more)")
        axes.tick_params(labelsize=9)
        axes.margins(x=0.12, y=0.12)
        dots = [(row[name], _y(row)) for row in own]
        _label(axes, [(row["name"], row[name], _y(row)) for row in best], dots)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, ncols=5, loc="outside lower center", frameon=False)
    return figure


def _label(axes, points: Iterable[tuple[str, float, float]], dots: Iterable[tuple[float, float]]) -> None:
    """Name the points (name, x, y) that have room for a name: no other named one is near.

    dots: all points of the panel. A name stands on the side of its point where it covers fewest of them.
    """
    to_fraction = axes.transData + axes.transAxes.inverted()
    others = [tuple(to_fraction.transform(dot)) for dot in dots]
    named_places: list[tuple[float, float]] = []
    for text, *point in points:
        x, y = to_fraction.transform(point)
        if any(abs(x - other_x) <= 0.25 and abs(y - other_y) <= 0.07 for other_x, other_y in named_places):
            continue
        named_places.append((x, y))

        def covered(side: str, text: str = text, x: float = x, y: float = y) -> int:
            width = 0.012 * len(text) + 0.02  # of the panel
            left, right = (x, x + width) if side == "left" else (x - width, x)
            return sum(left < other_x < right and y - 0.1 < other_y < y for other_x, other_y in others)

        side = min(("left", "right"), key=covered)  # "left": the name begins at its point
        offset = (5 if side == "left" else -5, -11)
        axes.annotate(text, point, offset, textcoords="offset points", ha=side, fontsize=9, color=INK)


def _y(row: Mapping) -> float:
    return min(row["perplexity"], LARGEST)


def rounding(folder: Path, name: str = "q_proj", group: int = 64) -> Figure:
    """What NNCF leaves of one group of weights of the first layer with this name, in an FP16 IR: INT4 and NF4.

    NNCF runs in another process, whose progress bars are no output of a notebook.
    """
    with TemporaryFile() as log, preflight.Child("Rounding", log=log) as child:
        weights, rounded = child.call(rounded_weights, folder, name, group)
    figure = Figure(figsize=(9, 3), dpi=110, layout="constrained")
    order = np.argsort(weights[0, :group])
    for axes, (mode, left) in zip(figure.subplots(1, 2, sharey=True), rounded.items(), strict=True):
        axes.plot(weights[0, :group][order], color=LINE, linewidth=1, label="16 bits")
        axes.plot(left[0, :group][order], color=COLOURS[1], linewidth=0, marker="o", markersize=3, label="4 bits")
        error = np.sqrt(np.mean((left - weights) ** 2) / np.mean(weights**2))
        title = f"{mode.partition('_')[0]}: relative error of the matrix {number(error, 2)}"
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_xlabel("64 weights, sorted", fontsize=9, color=INK)
        axes.tick_params(labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=9, frameon=False)
    return figure


def rounded_weights(folder: Path, name: str, group: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The weights [outputs, inputs] of the first layer with this name, and what INT4 and NF4 leave of them."""
    operations = ov.Core().read_model(folder / "openvino_model.xml").get_ops()
    constants = [op for op in operations if op.get_type_name() == "Constant" and name in op.friendly_name]
    weights = next(op for op in constants if len(op.shape) == 2).data.astype(np.float32)  # [O, I]
    rounded = {}
    for mode in ("INT4_ASYM", "NF4"):
        call = f"nncf.compress_weights(model, mode=Mode.{mode}, group_size={group}, all_layers=True)"
        x = ops.parameter([-1, weights.shape[1]], np.float32)
        model = compress(call, ov.Model([ops.matmul(x, ops.constant(weights), False, True)], [x]))
        request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        rounded[mode] = request.infer([np.eye(weights.shape[1], dtype=np.float32)])[0].T  # [O, I]
    return weights, rounded


def recall_map(rows: Iterable[Mapping]) -> Figure:
    """Numbers found in long prompts, by method and length, and the processor seconds of the longest one."""
    rows = [row for row in rows if any(field.startswith("recall_") for field in row)]
    lengths = sorted(
        {int(field.removeprefix("recall_")) for row in rows for field in row if field.startswith("recall_")}
    )
    found = np.array([[row.get(f"recall_{length}", np.nan) for length in lengths] for row in rows])
    figure = Figure(figsize=(9, 1 + 0.3 * len(rows)), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    left.imshow(found, cmap="Blues", vmin=0, vmax=12, aspect="auto")  # 8 is not too dark for black numbers
    for y, own in enumerate(found):
        for x, value in enumerate(own):
            left.text(x, y, "" if np.isnan(value) else f"{value:.0f}", ha="center", va="center", fontsize=9, color=INK)
    left.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    left.set_yticks(range(len(rows)), [row["name"] for row in rows])
    left.set_xlabel("numbers found of 8, by tokens of the prompt", fontsize=9, color=INK)
    seconds = [row.get(f"cpu_s_{lengths[-1]}", 0) for row in rows]
    bars = right.barh(range(len(rows)), seconds, color=PEER)
    right.bar_label(bars, [number(value) for value in seconds], padding=3, fontsize=9, color=INK)
    right.set_xlabel(f"processor seconds for {lengths[-1]:,} tokens", fontsize=9, color=INK)
    right.margins(x=0.15)
    right.spines[["top", "right"]].set_visible(False)
    for axes in (left, right):
        axes.tick_params(labelsize=9)
    return figure


# --- Tables -------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Mapping], columns: Mapping[str, str], folded: str = "") -> Table:
    """Rows by name with columns of fields; columns: field -> heading. An error stands in the first column.

    Times of a busy machine are left out.
    """
    lines = []
    for row in rows:
        hidden = TIMES if row.get("busy_percent", 0) > BUSY_PERCENT else ()
        cells = ["" if field in hidden else _cell(row.get(field, row.get(ERRORS.get(field)))) for field in columns]
        if error := row.get("error"):
            cells[0] = error
        lines.append([row["name"], *cells])
    return Table(["Method", *columns.values()], lines, folded=folded)


def used(rows: Sequence[Mapping], columns: Mapping[str, str]) -> dict[str, str]:
    """The columns of which a row has a value."""
    return {field: heading for field, heading in columns.items() if any(field in row for row in rows)}


def _cell(value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return "" if value is None else number(value)


TIMES = {"first_ms", "again_ms", "tokens_per_s", "ratio", "convert_s", "start_s", "token_ms"}
TIMES |= {"paged_token_ms", "paged_read_ms"}
WEIGHT_COLUMNS = {
    "perplexity": "Perplexity",
    "right": "Right of 48",
    "model_mb": "MB",
    "compress_seconds": "Compression, s",
    "compress_peak_mb": "Its memory, MB",
    "running_mb": "Running, MB",
    "first_ms": "First token, ms",
    "tokens_per_s": "Tokens/s",
}
CACHE_COLUMNS = {
    "perplexity": "Perplexity, stateful",
    "paged_perplexity": "Perplexity, paged",
    "bytes_per_token": "Bytes of a token",
    "token_ms": "ms/token after 4,096, stateful",
    "paged_token_ms": "ms/token, paged",
    "paged_read_ms": "ms to read 4,096, paged",
}
ERRORS = {"perplexity": "stateful_error", "paged_perplexity": "paged_error"}  # what stands in place of a field
PROMPT_COLUMNS = {
    "recall_1024": "Found of 8 in 1,024",
    "recall_2048": "in 2,048",
    "recall_4096": "in 4,096",
    "recall_8000": "in 8,000 tokens",
    "cpu_s_2048": "Processor s for 2,048",
    "cpu_s_8000": "for 8,000",
    "cache_percent": "Cache used, %",
    "paged_perplexity": "Perplexity",
    "first_ms": "First token, ms",
    "again_ms": "Again, ms",
}
DECODING_COLUMNS = {
    "tokens_per_s": "Tokens/s",
    "ratio": "Times greedy",
    "same": "Equal answers",
    "of": "of",
    "accepted": "Accepted",
    "promise": "Keeps its promise",
}
ACTIVATION_COLUMNS = {"perplexity": "Perplexity", "first_ms": "First token, ms", "tokens_per_s": "Tokens/s"}
READING_COLUMNS = {"convert_s": "Conversion, s", "start_s": "Start to answer, s", "running_mb": "Peak, MB"}
COLUMNS = {
    "weights": ("Weights", WEIGHT_COLUMNS),
    "activations": ("Activations, on INT8 weights", ACTIVATION_COLUMNS),
    "cache": ("KV cache, on FP16 weights", CACHE_COLUMNS),
    "prompt": ("Long prompts, on FP16 weights", PROMPT_COLUMNS),
    "decoding": ("Decoding, on INT8 weights", DECODING_COLUMNS),
    "reading": ("Reading", READING_COLUMNS),
}


def calls() -> str:
    """Every method with its call, as Markdown that is folded by kind."""
    parts = []
    for kind, (title, _) in COLUMNS.items():
        own = [method for method in METHODS if method.kind == kind]
        lines = [[m.name, m.mechanism, f"`{' '.join(m.call.split())}`", m.how] for m in own]
        parts.append(Table(["Method", "Mechanism", "Call", "How it works"], lines, folded=title).markdown())
    return "\n\n".join(parts)


def measured(rows: Mapping[str, Sequence[Mapping]]) -> str:
    """The complete measured tables as Markdown, folded by kind. What was not measured has its reason."""
    parts = []
    for kind, (title, columns) in COLUMNS.items():
        if rows.get(kind):
            known = {row["name"] for row in rows[kind]}
            left = [method for method in METHODS if method.kind == kind and method.name not in known]
            reasons = [{"name": method.name, "error": method.why or "not measured yet"} for method in left]
            parts.append(table([*rows[kind], *reasons], used(rows[kind], columns), folded=title).markdown())
            for cpu in dict.fromkeys(row["cpu"] for row in rows[kind] if "cpu" in row):
                names = [row["name"] for row in rows[kind] if row.get("cpu") == cpu]
                failed = sum("error" in row for row in rows[kind])
                which = "All of these were" if len(names) == len(known) - failed else f"{', '.join(names)}:"
                parts.append(f"{which} measured on another processor, {cpu.partition(' (')[0]}.")
    return "\n\n".join(parts)


def coverage(measured_names: Collection[str]) -> str:
    """Every paper of the updates under its mechanism, as Markdown that is folded by mechanism.

    The methods that answer to it are listed; a star says that the method was not measured.
    """
    parts, listed = [], papers()
    for mechanism in dict.fromkeys([*MECHANISMS, *(paper["mechanism"] for paper in listed)]):
        own = [paper for paper in listed if paper["mechanism"] == mechanism]
        lines = []
        for paper in own:
            link = f"[{paper['paper'].replace('[', '(').replace(']', ')')}]({paper['url']})"
            names = filter(None, paper["methods"].split(";"))
            rows = ", ".join(name + ("" if name in measured_names else "*") for name in names) or "–"
            lines.append([paper["update"], link, RELATIONS[paper["relation"]], paper["note"], rows])
        if own:
            title = f"{mechanism}: {len(own)}"
            header = ["Update", "Method", "In OpenVINO", "What there is", "Methods"]
            parts.append(Table(header, lines, folded=title[0].upper() + title[1:]).markdown())
    return "\n\n".join(parts)


RELATIONS = {"ships": "yes", "relative": "a relative", "none": "no"}


def written(text: str, rows: Mapping[str, Sequence[Mapping]]) -> str:
    """A page with the parts between `<!-- methods:NAME -->` and `<!-- /methods -->` up to date."""
    names = {row["name"] for own in rows.values() for row in own}
    made = {"calls": calls, "measured": lambda: measured(rows), "coverage": lambda: coverage(names)}
    return MARKED.sub(lambda match: f"<!-- methods:{match[1]} -->\n{made[match[1]]()}\n<!-- /methods -->", text)


def stored() -> dict[str, list[dict]]:
    """The measured rows of this repository, by kind."""
    rows: dict[str, list[dict]] = {}
    for row in json.loads(ROWS.read_text(encoding="utf-8"))["rows"]:
        rows.setdefault(row["kind"], []).append(row)
    return rows


def thumbnail(rows: Iterable[Mapping]) -> Figure:
    """A small map: perplexity against the size of the weights."""
    rows = [row for row in rows if row.get("perplexity") is not None]
    figure = Figure(figsize=(4, 2.5), dpi=80, layout="constrained")
    axes = figure.subplots()
    for row in rows:
        colour = PALETTE[named(row["name"]).mechanism]
        axes.scatter(row["model_mb"], _y(row), color=colour, s=30)
    axes.set_xlabel("MB of weights", fontsize=13, color=INK)
    axes.set_ylabel("perplexity", fontsize=13, color=INK)
    axes.tick_params(labelsize=12)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    rows = stored()
    method_map(rows["weights"]).savefig(FOLDER / "map.png")
    thumbnail(rows["weights"]).savefig(FOLDER / "thumbnail.jpg")
    page = Path(FOLDER, "README.md")
    text = written(page.read_text(encoding="utf-8"), rows)
    with replaced(page) as partial:
        partial.write_bytes(text.encode())
    print("Written: map.png, thumbnail.jpg, README.md.")


if __name__ == "__main__":
    main()
