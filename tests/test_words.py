"""The words of the pages: plain technical English, with the terms of the field."""

import ast
import json
import re
from pathlib import Path

import pytest

from utils.paths import ROOT

# What a reader of English stumbles over: private names for known things, and metaphors.
AVOIDED = re.compile(
    r"\b(told|heard|anew|beside|in turns|refused with|must lose|rooms?|cards?|phones|ears|verdicts?|aims?|aimed"
    r"|honest\w*|the lesson|this lesson)\b",
    re.IGNORECASE,
)
CASES = sorted(path.parent.name for path in ROOT.glob("notebooks/*/*.ipynb"))
FIGURES = [*ROOT.glob("notebooks/*/figures.py"), ROOT / "utils" / "charts.py"]
SMALLEST_PT = 9


def prose(page: Path) -> str:
    """The text of a page without code."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    text = re.sub(r"^```.*?^```$|<!-- results.*?<!-- /results -->", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`", "", text)


@pytest.mark.parametrize("case", CASES)
def test_pages_of_a_notebook_avoid_words(case):
    folder = ROOT / "notebooks" / case
    for page in (folder / f"{case}.ipynb", folder / "README.md", folder / "TRAINING.md"):
        if page.is_file():
            assert not {match[0] for match in AVOIDED.finditer(prose(page))}, page.name


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "utils/template/notebooks/new_case/README.md"])
def test_front_pages_avoid_words(name):
    assert not {match[0] for match in AVOIDED.finditer(prose(ROOT / name))}


@pytest.mark.parametrize("module", FIGURES, ids=lambda path: path.parent.name)
def test_figures_have_no_small_type(module):
    """A keyword such as `fontsize` or `labelsize` in points."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    keywords = [
        node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in ("fontsize", "labelsize")
    ]
    sizes = [node.value.value for node in keywords if isinstance(node.value, ast.Constant)]
    assert not [size for size in sizes if isinstance(size, int | float) and size < SMALLEST_PT]
