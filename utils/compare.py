"""Rows of the parity and quality tables, and the one place where `pass` is computed from value and threshold.

A parity row compares one sub-model with PyTorch. A quality row compares a task metric with its threshold. A control
row is a negative control: it measures the same metric where it has to miss the threshold, which shows that the metric
discriminates.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

BETTER = ("higher", "lower")


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
) -> dict:
    """The quality row of one metric at one precision.

    `reference` is the unquantised PyTorch value. `better` is "higher" or "lower"; a value equal to the
    threshold passes. Without a threshold the row is only reported: its `pass` is None.
    """
    row = {
        "metric": metric,
        "better": _direction(better),
        "precision": precision,
        "value": _number(metric, value),
        "reference": None if reference is None else _number("reference", reference),
        "threshold": None if threshold is None else _number("threshold", threshold),
    }
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


def table(rows: Iterable[Mapping]):
    """The rows as a pandas DataFrame; its last column `pass` is computed from the row: True, False or "reported"."""
    import pandas as pd

    rows = list(rows)
    verdicts = ["reported" if (verdict := passes(row)) is None else verdict for row in rows]
    frame = pd.DataFrame(
        [{key: value for key, value in row.items() if key not in ("pass", "controls")} for row in rows]
    )
    for column in ("precision", "control"):
        if column in frame:
            frame[column] = frame[column].astype(object).where(frame[column].notna(), "")
    frame["pass"] = pd.Series(verdicts, dtype=object)
    return frame


def check(rows: Iterable[Mapping]) -> None:
    """Raise AssertionError that names every failing row, or says that there is no row to check."""
    rows = list(rows)
    if not rows:
        raise AssertionError("There is no row to check: the table is empty.")
    failing = [describe(row) for row in rows if passes(row) is False]
    if failing:
        raise AssertionError(f"{len(failing)} of {len(rows)} rows fail: " + "; ".join(failing) + ".")


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
