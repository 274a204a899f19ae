"""How good and how fast the model is. `python -m notebooks.new_case.measuring` writes results/bench/new_case.json."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from notebooks.new_case import convert, data
from notebooks.new_case.network import predict
from notebooks.new_case.pipeline import DigitReader
from utils import bench, compare, paths, report

FP32_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32"}  # the CPU's default may be BF16
TOLERANCE = 1e-4  # of logits
MARGIN = 0.02  # of accuracy, below PyTorch
METRIC = "accuracy, held-out digits"
BATCHES = (1, 256)


def parity(model: str, device: str) -> list[dict]:
    """The parity rows: logits of the held-out pictures in FP32, compared with PyTorch."""
    pictures = data.held_out().pictures
    reader = DigitReader(convert.prepare(model), device, **FP32_PROPERTIES)
    return [compare.parity("logits", reader.logits(pictures), predict(convert.load(model), pictures), TOLERANCE)]


def quality(model: str, device: str) -> list[dict]:
    """The quality rows: accuracy at each precision; the negative control reads the pictures upside down."""
    pictures, labels = data.held_out()
    reference = accuracy(predict(convert.load(model), pictures), labels)
    threshold = reference - MARGIN
    rows = []
    for precision in convert.PRECISIONS:
        reader = DigitReader(convert.prepare(model, precision), device)
        value = accuracy(reader(pictures), labels)
        rows.append(compare.quality(METRIC, precision, value, reference, threshold, "higher"))
    reader = DigitReader(convert.prepare(model), device)
    value = accuracy(reader(pictures[:, ::-1]), labels)
    return [*rows, compare.control(METRIC, "pictures upside down", value, threshold, "higher")]


def accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    """The share of rows [n, 10] whose largest score is that of the label [n]."""
    return float(np.mean(scores.argmax(1) == labels))


@bench.live
def speed(model: str = "tiny", rounds: int = 5) -> list[dict]:
    """The speed rows on the CPU: PyTorch eager and OpenVINO at each precision, each in a process of its own."""
    settings = [bench.Setting("torch eager", "FP32", start_torch, (model,))]
    for precision in convert.PRECISIONS:
        folder = convert.prepare(model, precision)
        settings.append(bench.Setting("openvino", precision, start_openvino, (folder,), bench.size_mb(folder)))
    workloads = [bench.Workload(f"batch {batch}", batch, "pictures/s") for batch in BATCHES]
    return bench.compare(settings, workloads, rounds)


def start_torch(model: str) -> dict[str, Callable]:
    """The workloads of PyTorch eager."""
    return batches(partial(predict, convert.load(model)))


def start_openvino(folder: Path) -> dict[str, Callable]:
    """The workloads of OpenVINO."""
    return batches(DigitReader(folder).logits)


def batches(run: Callable) -> dict[str, Callable]:
    """A workload for each batch size. run: is called with pictures."""
    pictures = data.held_out().pictures
    return {f"batch {batch}": partial(run, pictures[:batch]) for batch in BATCHES}


def main() -> None:
    with bench.exclusive() as load:
        rows = speed(rounds=50)
    report.save_bench(paths.notebook_dir(__package__).name, rows, load)


if __name__ == "__main__":
    main()
