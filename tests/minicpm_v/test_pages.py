"""What the notebook and the README say in words is what the stored examination measured."""

import json

import pytest

from notebooks.minicpm_v import figures
from utils import report
from utils.paths import ROOT

FOLDER = ROOT / "notebooks" / "minicpm_v"


def words_of(page: str) -> str:
    """The text of a page in one line."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    if page.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return " ".join(text.split())


@pytest.mark.parametrize("page", ["minicpm_v.ipynb", "README.md"])
def test_the_key_result_is_stated_as_it_was_measured(page):
    rows = [row for row in report.examination("minicpm_v")["quality"] if row["metric"] == figures.SMALL_WORDS]
    of = next(row["of"] for row in rows if "of" in row)
    read = {row["precision"]: round(row["value"] * of) for row in rows if row["precision"]}
    (missed,) = (round(row["value"] * of) for row in rows if row.get("control") == figures.NO_SLICES)
    compressed = f"{read['INT8']} at INT8, {read['INT4']} at INT4"
    with_slices = f"{read['FP16']} of {of} small words right with slices ({compressed})"
    assert f"reads {with_slices}, and {missed} of {of} without." in words_of(page)
