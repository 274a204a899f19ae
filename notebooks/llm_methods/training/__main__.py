"""Trains what comes with this notebook: `python -m notebooks.llm_methods.training`, or one part, `adapter` or `draft`.

The adapter takes two minutes on two cores, the draft hours. The draft keeps its state in
models/llm_methods-training: a run that was stopped resumes there. Both are seeded.
"""

from __future__ import annotations

import sys

from notebooks.llm_methods.training import adapter, draft
from utils.training import parts

PARTS = {"adapter": adapter.main, "draft": draft.main}

if __name__ == "__main__":
    parts.run(PARTS, sys.argv[1:])
