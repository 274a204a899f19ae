"""What a rank has to avoid with OpenVINO 2026.4.1."""

import subprocess
import sys
from pathlib import Path

import openvino as ov
import pytest

from notebooks.llm_distributed import convert
from notebooks.llm_distributed.pipeline.graph import MODEL_XML

CPUINFO = Path("/proc/cpuinfo")
READ = """
import sys
import numpy as np
import openvino as ov

properties = {"INFERENCE_PRECISION_HINT": sys.argv[2], "INFERENCE_NUM_THREADS": int(sys.argv[3])}
request = ov.Core().compile_model(sys.argv[1], "CPU", properties).create_infer_request()
positions = np.arange(5)[None]
request.infer({"input_ids": positions, "attention_mask": np.ones((1, 5), np.int64), "position_ids": positions,
               "beam_idx": np.zeros(1, np.int32)})
"""


def status(*arguments) -> int:
    return subprocess.run([sys.executable, "-c", READ, *map(str, arguments)], capture_output=True).returncode


@pytest.mark.skipif(
    not CPUINFO.is_file() or "amx_bf16" not in CPUINFO.read_text(encoding="ascii", errors="replace"),
    reason="a processor with AMX for bfloat16",
)
def test_one_thread_with_bfloat16_ends_the_process():
    file = convert.prepare("tiny", 1)[0] / MODEL_XML
    assert status(file, "bf16", 1) == -8  # SIGFPE
    assert status(file, "f32", 1) == status(file, "bf16", 2) == 0


def test_a_policy_changes_nothing_on_one_socket(shares):
    core = ov.Core()
    kinds = []
    for properties in ({}, {"MODEL_DISTRIBUTION_POLICY": "TENSOR_PARALLEL"}):
        compiled = core.compile_model(shares(1)[0] / MODEL_XML, "CPU", properties)
        assert len(compiled.get_property("MODEL_DISTRIBUTION_POLICY")) == len(properties)
        kinds.append([node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops()])
    assert sorted(kinds[0]) == sorted(kinds[1])
