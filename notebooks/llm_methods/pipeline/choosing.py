"""Which method to take: the front of those that no other beats, and the best one within limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

GOALS = {  # goal -> the field that decides, and whether more is better
    "quality": ("perplexity", False),
    "speed": ("tokens_per_s", True),
    "first token": ("first_ms", False),
    "size": ("model_mb", False),
}


def front(rows: Iterable[Mapping], fields: Mapping[str, bool]) -> list[Mapping]:
    """The rows that no other row beats: none is as good in all fields and better in one.

    fields: name -> whether more is better. Rows that lack a field are left out.
    """
    rows = [row for row in rows if all(row.get(field) is not None for field in fields)]
    signs = {field: -1 if more else 1 for field, more in fields.items()}

    def beats(one: Mapping, other: Mapping) -> bool:
        gaps = [sign * (one[field] - other[field]) for field, sign in signs.items()]
        return max(gaps) <= 0 and min(gaps) < 0

    return [row for row in rows if not any(beats(other, row) for other in rows)]


def recommend(
    rows: Sequence[Mapping],
    goal: str = "quality",
    ram_gb: float | None = None,
    first_ms: float | None = None,
    at_most: float = 1.25,
) -> list[Mapping]:
    """Measured rows of weight methods within the limits, the best for the goal first.

    rows: with "perplexity", "running_mb" (peak memory), "first_ms", "tokens_per_s" and "model_mb". ram_gb: memory while
    the model runs. first_ms: time to the first token. at_most: perplexity, as a multiple of the lowest one; for the
    goal "quality" it does not count. Raises ValueError for an unknown goal, and for limits that no row keeps.
    """
    if goal not in GOALS:
        raise ValueError(f"There is no goal {goal!r}. Choose one of: {', '.join(GOALS)}.")
    field, more = GOALS[goal]
    rows = [row for row in rows if row.get(field) is not None and row.get("perplexity") is not None]
    if not rows:
        raise ValueError(f"No method has a {field}. `python -m notebooks.llm_methods.measuring` measures it.")
    lowest = min(row["perplexity"] for row in rows)
    kept = [row for row in rows if goal == "quality" or row["perplexity"] <= at_most * lowest]
    for name, limit in (("running_mb", ram_gb and ram_gb * 1e3), ("first_ms", first_ms)):
        if limit is not None:
            needed = min((row[name] for row in kept if row.get(name) is not None), default=None)
            kept = [row for row in kept if row.get(name) is not None and row[name] <= limit]
            if not kept:
                least = "none was measured" if needed is None else f"the least is {needed:,.0f}"
                raise ValueError(f"No method keeps {name} within {limit:,.0f}; {least}. Raise the limit.")
    return sorted(kept, key=lambda row: (-row[field] if more else row[field], row["model_mb"]))
