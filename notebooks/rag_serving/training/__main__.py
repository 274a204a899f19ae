"""Trains the adapters of the tiny models: `python -m notebooks.rag_serving.training`, or one part, `reading` or
`ranking`. Both are seeded, and a run that was stopped goes on."""

from __future__ import annotations

import sys

from notebooks.rag_serving.training import ranking, reading

PARTS = {"reading": reading.main, "ranking": ranking.main}


def main(parts: list[str]) -> None:
    """Train the parts, by default all. Exits with a message for an unknown one."""
    unknown = sorted(set(parts) - PARTS.keys())
    if unknown:
        sys.exit(f"There is no part {unknown[0]!r}. There are: {', '.join(PARTS)}.")
    for part in parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main(sys.argv[1:])
