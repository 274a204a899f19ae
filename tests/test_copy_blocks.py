"""The block that readers copy from each notebook runs in an empty folder and a fresh process, with their paths in it.

tests/<case>/copy_block.py says what it needs: `needs(scratch)`, a context manager that yields what stands in the place
of each "path/to/..." of the block and may write to the folder `scratch`; and PRINTS, a regular expression that the
block's output must match.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from utils.paths import ROOT

CASES = sorted(path.parent.name for path in ROOT.glob("notebooks/*/*.ipynb"))
FENCED = re.compile(r"^```python\n(# copy from here\n.*?)^```$", re.MULTILINE | re.DOTALL)


def block_of(case: str) -> str:
    """The one block to copy in a notebook's text."""
    book = json.loads((ROOT / "notebooks" / case / f"{case}.ipynb").read_text(encoding="utf-8"))
    text = "\n\n".join("".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "markdown")
    (block,) = FENCED.findall(text)
    return block


@pytest.mark.parametrize("case", CASES)
def test_the_block_to_copy_runs_in_an_empty_folder(case, tmp_path):
    block, folder = block_of(case), ROOT / "notebooks" / case
    if (folder / "pipeline").is_dir():
        shutil.copytree(folder / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(folder / "pipeline.py", tmp_path)
    (tmp_path / "needs").mkdir()
    expected = importlib.import_module(f"tests.{case}.copy_block")
    with expected.needs(tmp_path / "needs") as places:
        for place, value in places.items():
            assert f'"{place}"' in block, place
            block = block.replace(f'"{place}"', repr(value))
        assert "path/to" not in block and "environ" not in block
        (tmp_path / "use.py").write_text(block, encoding="utf-8")
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        run = subprocess.run(
            [sys.executable, "use.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8"
        )
    assert run.returncode == 0, run.stderr
    assert re.search(expected.PRINTS, run.stdout, re.MULTILINE), run.stdout


@pytest.mark.parametrize("case", CASES)
def test_the_readme_has_the_same_block(case):
    assert block_of(case) in (ROOT / "notebooks" / case / "README.md").read_text(encoding="utf-8")
