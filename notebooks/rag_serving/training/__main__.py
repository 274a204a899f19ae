"""Trains the adapters of the tiny models: `python -m notebooks.rag_serving.training`, or one part, `reading` or
`ranking`. Both are seeded, and a run that was stopped goes on."""

from __future__ import annotations

import sys

from notebooks.rag_serving.training import ranking, reading
from utils.training import parts

PARTS = {"reading": reading.main, "ranking": ranking.main}

if __name__ == "__main__":
    parts.run(PARTS, sys.argv[1:])
