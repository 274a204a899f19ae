"""The command of a training that has several parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from utils.training import provenance


def run(parts: Mapping[str, Callable[[], object]], chosen: Sequence[str]) -> None:
    """Train the chosen parts, by default all. Exits with a message for an unknown one."""
    unknown = sorted(set(chosen) - parts.keys())
    if unknown:
        sys.exit(f"There is no part {unknown[0]!r}. There are: {', '.join(parts)}.")
    for part in chosen or parts:
        provenance.STAGES.clear()
        parts[part]()
