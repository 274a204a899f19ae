"""A long examination is run with stubs in place of models; the stored one has the same rows and passes."""

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest

from utils import compare, report


def check(
    case: str, quality: ModuleType, stubs: Mapping[str, object], folder: Path, part: str | None = None
) -> list[dict]:
    """Run `quality.main()` and compare what it writes with the stored examination, whose rows are returned.

    stubs: what stands in place of names of the module during the run, such as "Reference" or "convert.prepare".
    folder: an empty folder for the results.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "EXAMINATIONS", folder)
        for name, stub in stubs.items():
            owner, _, attribute = name.rpartition(".")
            patch.setattr(attrgetter(owner)(quality) if owner else quality, attribute, stub)
        quality.main()
        written = report.examination(case, part)["quality"]
    stored = report.examination(case, part)["quality"]
    compare.check(stored)
    for field in ("metric", "precision", "control"):
        assert [row.get(field) for row in stored] == [row.get(field) for row in written]
    return stored
