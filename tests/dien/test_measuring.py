"""The speed rows: every runtime computes the same, ratios are to PyTorch, the rest is written as it is shown."""

import numpy as np
import torch

from notebooks.dien.convert import convert
from notebooks.dien.measuring import bench as measuring
from notebooks.dien.network import INPUTS, Config
from notebooks.dien.pipeline import ClickModel
from tests.dien.small import EXACT, SIZES
from utils import report


def test_all_runtimes_compute_the_same(tmp_path):
    network = measuring.random_network(Config(*SIZES, independent=True))
    batch = measuring.random_batch(network.config, 4, 5)
    with torch.inference_mode():
        expected = network(*(torch.from_numpy(batch[name]) for name in INPUTS))[0].numpy()
    onnx = measuring.onnx(network, 5, tmp_path)(batch)
    assert np.abs(onnx[0] - expected).max() < 1e-5
    model = ClickModel(convert(network, tmp_path / "dien.xml", 5), cache=None, **EXACT)
    assert np.abs(model.infer(batch)[0] - expected).max() < 1e-5


def test_rows_name_every_peer_and_pass_the_schema(tmp_path):
    config = Config(*SIZES, independent=True)
    paths = {"FP32": convert(measuring.random_network(config), tmp_path / "dien.xml", 4)}
    rows = measuring.batch_sizes(config, paths, 4, (1, 3), rounds=1)
    assert {row["runtime"] for row in rows} == {"torch eager", "torchscript", "onnxruntime", "openvino"}
    assert {row["workload"] for row in rows} == {"history 4, batch 1", "history 4, batch 3"}
    assert {row["precision"] for row in rows} == {"FP32", "BF16"}
    path = report.save("dien", model="tiny", device="CPU", parity=[], quality=[], speed=rows, folder=tmp_path)
    assert len(report.load(path)["speed"]) == len(rows)


def test_operations_are_counted_from_the_sizes():
    small = Config(*SIZES, embedding=1, query=1, attention=(1, 1), layers=(1, 1))
    step = 2 * 3 * 4 * 2 + 8 + 1 + 1
    assert measuring.operations(10, small) == 2 * (10 * step + 2 + 9 + 1 + 2)


def test_the_committed_measurements_are_those_that_the_notebook_shows():
    stored = report.load(report.BENCH / "dien.json")
    workloads = {row["workload"] for row in stored["speed"]}
    assert {f"history {measuring.LENGTH}, batch {batch}" for batch in measuring.BATCHES} <= workloads
    assert any("released size" in row.get("label", "") for row in stored["speed"])
