"""What READMEs show of an emulated ARM processor: each has models, and what notebooks build has no form in which
`wrong_on_arm` knows a fault."""

import importlib
import re

import pytest

from utils import report, sources
from utils.models.portable import wrong_on_arm
from utils.paths import ROOT
from utils.run import cases

CASES = cases()
BUILDING = [
    case
    for case in CASES
    if "\ndef graphs(" in sources.file_of(f"notebooks.{case}.convert").read_text(encoding="utf-8")
]


@pytest.mark.parametrize("case", CASES)
def test_the_readme_shows_models_on_arm(case):
    section = (ROOT / "notebooks" / case / "README.md").read_text(encoding="utf-8").partition("\n## Devices\n")[2]
    assert re.search(r'<!-- results:arm \["', section.partition("\n## ")[0])


def test_what_notebooks_build_is_shown():
    assert len(BUILDING) >= 5 and set(BUILDING) == set(CASES) & report.on_arm()


@pytest.mark.parametrize("case", BUILDING)
def test_nothing_that_a_notebook_builds_has_a_fault_that_is_looked_for(case):
    models = importlib.import_module(f"notebooks.{case}.convert").graphs()
    assert models and {name: wrong for name, build in models.items() if (wrong := wrong_on_arm(build()))} == {}
