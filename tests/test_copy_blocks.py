"""The block that readers copy from each notebook runs as it stands, in an empty folder, in a fresh process.

tests/<case>/copy_block.py says what it needs: `needs(scratch)`, a context manager that yields environment variables,
for which it may write to the folder `scratch`; and PRINTS, a regular expression that its output must match.
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


@pytest.mark.parametrize("case", sorted(path.parent.name for path in ROOT.glob("notebooks/*/*.ipynb")))
def test_the_block_to_copy_runs_in_an_empty_folder(case, tmp_path):
    folder = ROOT / "notebooks" / case
    book = json.loads((folder / f"{case}.ipynb").read_text(encoding="utf-8"))
    (block,) = ["".join(c["source"]) for c in book["cells"] if "copy-block" in c["metadata"].get("tags", [])]
    (tmp_path / "use.py").write_text(block, encoding="utf-8")
    if (folder / "pipeline").is_dir():
        shutil.copytree(folder / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(folder / "pipeline.py", tmp_path)
    (tmp_path / "needs").mkdir()
    expected = importlib.import_module(f"tests.{case}.copy_block")
    with expected.needs(tmp_path / "needs") as variables:
        environment = {**os.environ, **variables, "TMPDIR": str(tmp_path)}
        run = subprocess.run([sys.executable, "use.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert re.search(expected.PRINTS, run.stdout, re.MULTILINE), run.stdout
