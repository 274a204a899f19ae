"""The block that readers copy runs as it stands, in an empty folder, in a fresh process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from notebooks.dien import convert

ROOM = Path(convert.__file__).parent


def test_the_block_to_copy_runs_in_an_empty_folder(tmp_path):
    book = json.loads((ROOM / "dien.ipynb").read_text(encoding="utf-8"))
    (block,) = ["".join(c["source"]) for c in book["cells"] if "copy-block" in c["metadata"].get("tags", [])]
    (tmp_path / "use.py").write_text(block, encoding="utf-8")
    shutil.copy(ROOM / "pipeline.py", tmp_path)
    environment = {**os.environ, "MODEL_FILE": str(convert.prepare("tiny", "FP32"))}
    run = subprocess.run([sys.executable, "use.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    scores = [float(number) for number in run.stdout.split()]
    assert len(scores) == 2 and all(0 < score < 1 for score in scores)
