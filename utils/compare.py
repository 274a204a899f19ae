"""Rows of the parity and quality tables, and the one place where `pass` is computed from value and threshold.

A parity row compares one sub-model with PyTorch. A quality row compares a task metric with its threshold. A control
row is a negative control: it measures the same metric where it has to miss the threshold, which shows that the metric
discriminates. `show` makes a table for people of either kind.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from utils.tables import Table, number

BETTER = ("higher", "lower")
SPEED = [
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


def parity(stage: str, ours: Any, reference: Any, tolerance: float) -> dict:
    """The parity row of one stage: largest absolute difference and cosine of two arrays or tensors of equal
    shape.

    Raises ValueError when the shapes differ, an array is empty, or a value is not finite.
    """
    ours, reference = _array(stage, "our output", ours), _array(stage, "the reference", reference)
    if ours.shape != reference.shape:
        raise ValueError(
            f"Parity of {stage}: our output has shape {ours.shape}, the reference {reference.shape}. "
            "Compare arrays of the same shape."
        )
    norms = float(np.linalg.norm(ours) * np.linalg.norm(reference))
    if norms:
        cosine = min(1.0, max(-1.0, float(np.vdot(ours, reference)) / norms))
    else:  # the angle to a zero vector is undefined: equal counts as aligned, anything else as unrelated
        cosine = float(np.array_equal(ours, reference))
    row = {
        "stage": stage,
        "max_abs_diff": float(np.max(np.abs(ours - reference))),
        "cosine": cosine,
        "tolerance": _number("tolerance", tolerance),
    }
    return row | {"pass": passes(row)}


def quality(
    metric: str,
    precision: str,
    value: float,
    reference: float | None,
    threshold: float | None,
    better: str,
    *,
    goal: float | None = None,
    of: int | None = None,
) -> dict:
    """The quality row of one metric at one precision.

    `reference` is the unquantised PyTorch value. `better` is "higher" or "lower"; a value equal to the
    threshold passes. Without a threshold the row is only reported: its `pass` is None. `goal` is the value at which the
    result is useful. `of` is the number of trials that a share or a count is of, for showing it as 37/48.
    """
    row = {
        "metric": metric,
        "better": _direction(better),
        "precision": precision,
        "value": _number(metric, value),
        "reference": None if reference is None else _number("reference", reference),
        "threshold": None if threshold is None else _number("threshold", threshold),
    }
    if goal is not None:
        row["goal"] = _number("goal", goal)
    if of is not None:
        row["of"] = int(of)
    return row | {"pass": passes(row)}


def control(metric: str, name: str, value: float, threshold: float, better: str) -> dict:
    """The row of a negative control: `metric` of something deliberately wrong, such as "zero points ignored".

    `threshold` and `better` are those of the metric it controls. It passes when its value fails that
    threshold.
    """
    row = {
        "metric": metric,
        "better": _direction(better),
        "precision": None,
        "value": _number(metric, value),
        "reference": None,
        "threshold": _number("threshold", threshold),
        "controls": metric,
        "control": name,
    }
    return row | {"pass": passes(row)}


def passes(row: Mapping) -> bool | None:
    """Whether a row of either table passes; None for one without a threshold. NaN never passes."""
    if "stage" in row:
        return bool(row["max_abs_diff"] <= row["tolerance"])
    value, threshold = row["value"], row["threshold"]
    if threshold is None:
        return None
    if math.isnan(value) or math.isnan(threshold):
        return False
    reached = value >= threshold if _direction(row["better"]) == "higher" else value <= threshold
    return bool(reached) != ("controls" in row)


def describe(row: Mapping) -> str:
    """A row in words: the value and the limit that it was compared with."""
    if "stage" in row:
        difference, tolerance = row["max_abs_diff"], row["tolerance"]
        return f"{row['stage']} differs from PyTorch by {difference:.3g}, tolerance {tolerance:.3g}"
    if row["threshold"] is None:
        return f"{row['metric']} at {row['precision']} is {row['value']:.4g} (reported, no threshold)"
    if "controls" in row:
        return (
            f"the control '{row['control']}' of {row['controls']} reaches {row['value']:.4g}, but must not "
            f"reach the threshold {row['threshold']:.4g} ({row['better']} is better)"
        )
    return (
        f"{row['metric']} at {row['precision']} is {row['value']:.4g}, threshold {row['threshold']:.4g} "
        f"({row['better']} is better)"
    )


def below_goal(row: Mapping) -> bool:
    """Whether a row passes its threshold but misses its goal."""
    return bool(passes(row)) and "goal" in row and not passes({**row, "threshold": row["goal"]})


def show(rows: Iterable[Mapping]) -> Table:
    """Rows as a table: a line for each stage of parity rows, each metric of quality rows with their controls, or each
    workload of speed rows (`utils.bench`)."""
    rows = list(rows)
    if rows and "stage" in rows[0]:
        return _parity_table(rows)
    return _fastest(rows) if rows and "median_ms" in rows[0] else _quality_table(rows)


def _parity_table(rows: list[Mapping]) -> Table:
    lines = []
    for row in rows:
        difference = "none" if row["max_abs_diff"] == 0 else number(row["max_abs_diff"])
        allowed = "none" if row["tolerance"] == 0 else number(row["tolerance"])
        lines.append([row["stage"], difference, allowed, "passes" if passes(row) else "FAILS"])
    return Table(["Compared with PyTorch", "Largest difference", "Allowed", ""], lines)


def _quality_table(rows: list[Mapping]) -> Table:
    measured = [row for row in rows if "controls" not in row]
    controls = [row for row in rows if "controls" in row]
    precisions = list(dict.fromkeys(row["precision"] for row in measured if row["precision"] != "PyTorch"))
    with_goal = any("goal" in row for row in measured)
    lines = []
    for metric in dict.fromkeys(row["metric"] for row in rows):
        own = {row["precision"]: row for row in measured if row["metric"] == metric}
        first = next(iter(own.values()))
        line = [f"{metric} ({first['better']} is better)", _limits(own.values(), "threshold")]
        line += [_limits(own.values(), "goal")] if with_goal else []
        line.append(_value(first, first["reference"]))
        line += [_judged_value(own[precision]) if precision in own else "" for precision in precisions]
        failing = [row for row in controls if row["metric"] == metric]
        line.append("\n".join(f"{row['control']}: {_value(first, row['value'])}{_surprise(row)}" for row in failing))
        lines.append(line)
    goal = ["Goal"] if with_goal else []
    header = ["Metric", "Needed", *goal, "PyTorch", *precisions]
    if controls:
        return Table([*header, "Negative controls (fail, as they should)"], lines)
    return Table(header, [line[:-1] for line in lines])


def _limits(rows: Iterable[Mapping], field: str) -> str:
    """The threshold or goal of a metric; where precisions differ, the lowest and the highest, each with a precision."""
    rows = sorted((row for row in rows if row.get(field) is not None), key=lambda row: row[field])
    if not rows:
        return "–"
    texts = list(dict.fromkeys(_value(rows[0], row[field]) for row in (rows[0], rows[-1])))
    if len(texts) > 1:
        ends = zip(texts, (rows[0], rows[-1]), strict=True)
        texts = [f"{text} ({row['precision']})" for text, row in ends]
    return ("at least " if rows[0]["better"] == "higher" else "at most ") + " to ".join(texts)


def _value(row: Mapping, value: float | None) -> str:
    """A value of the row's metric: a count as 37/48, anything else as a number."""
    if value is None or "of" not in row:
        return number(value)
    known = (row["value"], row["reference"], row["threshold"], row.get("goal"))
    counted = any(one is not None and one > 1 for one in known)  # otherwise they are shares
    count = value if counted else value * row["of"]
    return f"{number(round(count, 1))}/{row['of']}"


def _judged_value(row: Mapping) -> str:
    verdict = " FAILS" if passes(row) is False else " (below goal)" if below_goal(row) else ""
    return _value(row, row["value"]) + verdict


def _surprise(control: Mapping) -> str:
    return "" if passes(control) else " PASSES, BUT SHOULD NOT"


def _fastest(rows: Sequence[Mapping]) -> Table:
    """A line for each workload that OpenVINO and PyTorch were timed with: the fastest setting of each, and the ratio.

    Where rows have it, a second ratio is that at equal precision: of our fastest setting among those that PyTorch has,
    too. Rows with a label, such as that of random weights, have lines of their own.
    """
    lines = []
    for workload in dict.fromkeys(_labelled(row) for row in rows):
        own = [row for row in rows if _labelled(row) == workload]
        ours = [row for row in own if is_ours(row)]
        torch = [row for row in own if is_baseline(row)]
        if ours and torch:
            best, peer = fastest(ours), fastest(torch)
            cells = (f"{_speed(row)} ({row['runtime']}, {row['precision']})" for row in (peer, best))
            lines.append([workload, *cells, f"{number(ratio(best, peer))}x", _at_precision(ours)])
    header = ["Workload", "Fastest PyTorch", "Fastest OpenVINO", "Ratio"]
    if any(line[-1] for line in lines):
        return Table([*header, "Ratio at equal precision"], lines)
    return Table(header, [line[:-1] for line in lines])


def _at_precision(ours: Sequence[Mapping]) -> str:
    """The ratio to PyTorch at the same precision, as a text; empty where no row has one."""
    rows = [row for row in ours if row.get("ratio_at_precision") is not None]
    if not rows:
        return ""
    best = fastest(rows)
    return f"{number(best['ratio_at_precision'])}x ({best['precision']})"


def fastest(rows: Iterable[Mapping]) -> Mapping:
    """The fastest of the speed rows of a workload."""
    return max(rows, key=_rate)


def ratio(row: Mapping, peer: Mapping) -> float:
    """How many times as fast as a peer's speed row a speed row is."""
    return _rate(row) / _rate(peer)


def _rate(row: Mapping) -> float:
    """What is compared, the larger the faster: calls in a ms, or, of a server with many clients, the throughput."""
    return row["throughput"] if row.get("measure") == "throughput" else 1 / row["median_ms"]


def _speed(row: Mapping) -> str:
    if row.get("measure") == "throughput":
        return f"{number(row['throughput'])} {row['unit']}"
    return f"{number(row['median_ms'])} ms"


def timings(rows: Iterable[Mapping]) -> Table:
    """All that speed rows hold, as a table that is folded in a notebook."""
    lines = []
    for row in rows:
        done = "–" if row.get("throughput") is None else f"{number(row['throughput'])} {row.get('unit') or ''}"
        sizes = [number(row.get(column)) for column in ("ratio_to_torch", "peak_rss_mb", "model_mb")]
        times = [number(row["median_ms"]), number(row["p90_ms"])]
        lines.append([_labelled(row), row["runtime"], row["precision"], *times, done.strip(), *sizes])
    return Table(SPEED, lines, folded="All timings")


def _labelled(row: Mapping) -> str:
    return row["workload"] + (f" ({row['label']})" if "label" in row else "")


def is_ours(row: Mapping) -> bool:
    """Whether a speed row is of OpenVINO."""
    return row["runtime"].lower().startswith("openvino")


def is_pytorch(row: Mapping) -> bool:
    """Whether a speed row is of PyTorch."""
    return row["runtime"].startswith(("torch", "transformers"))


def is_baseline(row: Mapping) -> bool:
    """Whether others are compared with a speed row: it is of PyTorch, at a setting that passes the quality table."""
    return is_pytorch(row) and row.get("accepted", True)


def check(rows: Iterable[Mapping]) -> str:
    """How many rows pass and which metrics miss their goals, in a sentence.

    Raises AssertionError that names every failing row, or says that there is no row to check.
    """
    rows = list(rows)
    if not rows:
        raise AssertionError("There is no row to check: the table is empty.")
    failing = [describe(row) for row in rows if passes(row) is False]
    if failing:
        raise AssertionError(f"{len(failing)} of {len(rows)} rows fail: " + "; ".join(failing) + ".")
    passed = sum(bool(passes(row)) for row in rows)
    missed = list(dict.fromkeys(row["metric"] for row in rows if below_goal(row)))
    return f"{passed} checks passed" + (f"; below their goal: {', '.join(missed)}" if missed else "")


def _array(stage: str, which: str, values: Any) -> np.ndarray:
    if hasattr(values, "detach"):  # a torch tensor; numpy knows no bfloat16
        values = values.detach().cpu().double().numpy()
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"Parity of {stage}: {which} is empty. There is nothing to compare.")
    if not np.isfinite(array).all():
        bad = array.size - int(np.isfinite(array).sum())
        raise ValueError(f"Parity of {stage}: {which} has {bad} of {array.size} values that are NaN or infinite.")
    return array


def _number(name: str, value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}: a row of the tables needs a finite number.")
    return number


def _direction(better: str) -> str:
    if better not in BETTER:
        raise ValueError(f"better is {better!r}: say 'higher' or 'lower'.")
    return better
