"""Results as markdown: a row of the catalogue, and the three tables of a notebook's README.

The same results give the same bytes. Numbers are rounded to three or four significant digits.
"""

from collections.abc import Mapping

from utils import compare

CATALOGUE = ["Use case", "Measured with", "Difference closest to tolerance", "Quality", "Speed", "Verdict"]


def catalogue_row(title: str, results: Mapping, ok: bool) -> list[str]:
    """A use case: the parity row closest to its tolerance, the first quality row, the speed ratio of the workload that
    takes longest, and whether it passes."""
    case = results["case"]
    return [
        f"[{title}](notebooks/{case}/{case}.ipynb)",
        f"{results['model']}, {results['device']}",
        _closest_to_tolerance(results["parity"]),
        _first_quality(results["quality"]),
        _ratio(results),
        "pass" if ok else "**FAIL**",
    ]


def readme_table(name: str, results: Mapping, command: str) -> str:
    """The table `name` (parity, quality or speed) of one results file, with what it was measured on."""
    day = f" on {results['date']}" if "date" in results else ""
    parts = [
        f"Measured{day} by `{command}` with model {results['model']} on {results['device']} "
        f"({results['cpu']}, {results['cores']} cores, OpenVINO {results['versions'].get('openvino', '?')}):",
        TABLES[name](results[name]),
    ]
    if name == "speed" and results.get("notes"):
        parts.append("\n".join(f"* {key}: {number(value)}" for key, value in results["notes"].items()))
    return "\n\n".join(parts)


def _closest_to_tolerance(rows: list[dict]) -> str:
    """The row closest to (or furthest beyond) its tolerance; a tolerance of 0 means bit-identical."""
    if not rows:
        return "–"
    closest = max(rows, key=lambda row: (not compare.passes(row), row["max_abs_diff"] / (row["tolerance"] or 1.0)))
    return f"{number(closest['max_abs_diff'])} ({closest['stage']}; tolerance {number(closest['tolerance'])})"


def _first_quality(rows: list[dict]) -> str:
    for row in rows:
        if row["threshold"] is not None and "controls" not in row:
            limit = "at least" if row["better"] == "higher" else "at most"
            value, threshold = number(row["value"]), number(row["threshold"])
            return f"{row['metric']} {value} at {row['precision']} ({limit} {threshold})"
    return "–"


def _ratio(results: Mapping) -> str:
    """OpenVINO's best row of the workload that takes PyTorch longest, at a precision that passes the quality table.

    Smaller parts can have larger ratios, but matter less.
    """
    measured = [row for row in results["quality"] if "controls" not in row]
    good = {row["precision"] for row in measured if compare.passes(row)}
    good -= {row["precision"] for row in measured if compare.passes(row) is False}
    ours = [row for row in results["speed"] if row["runtime"].lower().startswith("openvino")]
    ours = [row for row in ours if row.get("ratio_to_torch") and row["precision"] in good]
    if not ours:
        return "–"
    longest = max(ours, key=lambda row: row["median_ms"] * row["ratio_to_torch"])["workload"]
    best = max((row for row in ours if row["workload"] == longest), key=lambda row: row["ratio_to_torch"])
    label = f", {best['label']}" if "label" in best else ""
    return f"{number(best['ratio_to_torch'], 2)}x PyTorch ({best['precision']}, {best['workload']}{label})"


def _parity_table(rows: list[dict]) -> str:
    header = ["Stage", "Largest difference", "Cosine", "Tolerance", "Verdict"]
    cells = [[row["stage"], row["max_abs_diff"], f"{row['cosine']:.6f}", row["tolerance"], _word(row)] for row in rows]
    return markdown(header, cells)


def _quality_table(rows: list[dict]) -> str:
    header = ["Metric", "Precision or control", "Value", "Reference", "Threshold", "Verdict"]
    cells = []
    for row in rows:
        what = f"control: {row['control']}" if "controls" in row else row["precision"]
        better = f"{row['metric']} ({row['better']} is better)"
        cells.append([better, what, row["value"], row["reference"], row["threshold"], _word(row)])
    return markdown(header, cells)


def _speed_table(rows: list[dict]) -> str:
    header = [
        "Workload",
        "Runtime",
        "Precision",
        "Median ms",
        "p90 ms",
        "Throughput",
        "x PyTorch",
        "Peak RSS MB",
        "Model MB",
    ]
    cells = []
    for row in rows:
        label = f" ({row['label']})" if "label" in row else ""
        done = "–" if row.get("throughput") is None else f"{number(row['throughput'], 3)} {row.get('unit') or ''}"
        sizes = [number(row.get(column), 3) for column in ("ratio_to_torch", "peak_rss_mb", "model_mb")]
        times = [number(row["median_ms"], 3), number(row["p90_ms"], 3)]
        cells.append([row["workload"] + label, row["runtime"], row["precision"], *times, done.strip(), *sizes])
    return markdown(header, cells)


TABLES = {"parity": _parity_table, "quality": _quality_table, "speed": _speed_table}


def _word(row: dict) -> str:
    passed = compare.passes(row)
    if passed is None:
        return "reported"
    if not passed:
        return "**FAIL**"
    return "loses, as it must" if "controls" in row else "pass"


def markdown(header: list[str], rows: list[list]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(number(cell).replace("|", r"\|") for cell in line) + " |" for line in lines)


def number(value, digits: int = 4) -> str:
    """A number to `digits` significant digits, None as a dash, text as it is."""
    if value is None:
        return "–"
    if isinstance(value, str | bool):
        return " ".join(str(value).split())
    if value and abs(value) < 1e-3:
        return f"{value:.{digits - 2}e}"
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
