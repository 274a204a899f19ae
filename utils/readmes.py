"""What is generated from results: a row of the catalogue, tables of a notebook's README, and its RESULTS.md.

The same results give the same bytes.
"""

from collections.abc import Collection, Mapping, Sequence

from utils import compare
from utils.tables import Table, number

CATALOGUE = ["Use case", "Measured with", "Difference closest to tolerance", "Quality", "Speed", "Verdict"]
Source = tuple[str, Mapping]  # the command that wrote results, and these


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


def quality(sources: Sequence[Source], metrics: Collection[str]) -> str:
    """A README's table of some metrics, from the first of the sources that has them all; all metrics if none is named.

    Raises ValueError for metrics that no source has.
    """
    for command, results in sources:
        rows = [row for row in results["quality"] if not metrics or row["metric"] in metrics]
        if rows and {row["metric"] for row in rows} >= set(metrics):
            return f"{measured_on(command, results)}\n\n{compare.show(rows).markdown()}"
    raise ValueError(f"no results have the metrics {', '.join(metrics) or 'of quality'}")


def speed(sources: Sequence[Source], workloads: Collection[str]) -> str:
    """A README's table of some workloads: the fastest PyTorch and the fastest OpenVINO, from each source that has them.

    Raises ValueError for workloads that no source has.
    """
    parts, missing = [], set(workloads)
    for command, results in sources:
        rows = [row for row in results["speed"] if not workloads or row["workload"] in workloads]
        missing -= {row["workload"] for row in rows}
        if (table := compare.show(rows)).rows:
            parts.append(f"{measured_on(command, results)}\n\n{table.markdown()}")
    if missing or not parts:
        raise ValueError(f"no results have the workloads {', '.join(sorted(missing)) or 'of speed'}")
    return "\n\n".join(parts)


def results_page(title: str, sources: Sequence[Source]) -> str:
    """RESULTS.md: the complete tables of all sources."""
    parts = [f"# Results: {title}", "`python -m utils.report` generates this page from the files in `results/`."]
    for name, table in (("quality", compare.show), ("parity", _parity_table), ("speed", compare.timings)):
        for command, results in sources:
            if rows := results[name]:
                parts += [f"## {name.capitalize()}", measured_on(command, results), table(rows).markdown()]
                if name == "speed" and results.get("notes"):
                    notes = (f"* {key}: {number(value, 4)}" for key, value in results["notes"].items())
                    parts.append("\n".join(notes))
    return "\n\n".join(_once(parts)) + "\n"


def measured_on(command: str, results: Mapping) -> str:
    day = f" on {results['date']}" if "date" in results else ""
    return (
        f"Measured{day} by `{command}` with model {results['model']} on {results['device']} "
        f"({results['cpu']}, {results['cores']} cores, OpenVINO {results['versions'].get('openvino', '?')}):"
    )


def _once(parts: Sequence[str]) -> list[str]:
    """Without the headings that are above already."""
    return [part for i, part in enumerate(parts) if not (part.startswith("## ") and part in parts[:i])]


def _closest_to_tolerance(rows: Sequence[Mapping]) -> str:
    """The row closest to (or furthest beyond) its tolerance; a tolerance of 0 means bit-identical."""
    if not rows:
        return "–"
    closest = max(rows, key=lambda row: (not compare.passes(row), row["max_abs_diff"] / (row["tolerance"] or 1.0)))
    return f"{number(closest['max_abs_diff'])} ({closest['stage']}; tolerance {number(closest['tolerance'])})"


def _first_quality(rows: Sequence[Mapping]) -> str:
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
    ours = [row for row in results["speed"] if compare.is_ours(row)]
    ours = [row for row in ours if row.get("ratio_to_torch") and row["precision"] in good]
    if not ours:
        return "–"
    longest = max(ours, key=lambda row: row["median_ms"] * row["ratio_to_torch"])["workload"]
    best = max((row for row in ours if row["workload"] == longest), key=lambda row: row["ratio_to_torch"])
    label = f", {best['label']}" if "label" in best else ""
    return f"{number(best['ratio_to_torch'], 2)}x PyTorch ({best['precision']}, {best['workload']}{label})"


def _parity_table(rows: Sequence[Mapping]) -> Table:
    header = ["Stage", "Largest difference", "Cosine", "Tolerance", ""]
    verdict = {True: "passes", False: "**FAILS**"}
    lines = [
        [
            row["stage"],
            number(row["max_abs_diff"]),
            f"{row['cosine']:.6f}",
            number(row["tolerance"]),
            verdict[compare.passes(row)],
        ]
        for row in rows
    ]
    return Table(header, lines)
