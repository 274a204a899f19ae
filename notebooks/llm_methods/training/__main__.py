"""Trains what comes with this notebook: `python -m notebooks.llm_methods.training`, or one part, `adapter` or `draft`.

The adapter takes two minutes on two cores, the draft two hours. The draft keeps its state in
models/llm_methods-training: a run that was stopped resumes there. Both are seeded.
"""

from __future__ import annotations

import sys

from notebooks.llm_methods.training import adapter, draft

PARTS = {"adapter": adapter.main, "draft": draft.main}


def main(parts: list[str]) -> None:
    """Train the parts, by default all. Exits with a message for an unknown one."""
    unknown = sorted(set(parts) - PARTS.keys())
    if unknown:
        sys.exit(f"There is no part {unknown[0]!r}. There are: {', '.join(PARTS)}.")
    for part in parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main(sys.argv[1:])
