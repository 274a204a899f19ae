"""How good and how fast the model is. `python -m notebooks.new_case.measuring` writes results/bench/new_case.json."""

from __future__ import annotations

from functools import partial

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
    """The speed rows on the CPU: PyTorch eager and OpenVINO at each precision, timed alternately."""
    network = convert.load(model)
    folders = {precision: convert.prepare(model, precision) for precision in convert.PRECISIONS}
    readers = {precision: DigitReader(folder) for precision, folder in folders.items()}
    rows = []
    for batch in BATCHES:
        pictures = data.held_out().pictures[:batch]
        calls = {("torch eager", "FP32"): partial(predict, network, pictures)}
        for precision, reader in readers.items():
            calls["openvino", precision] = partial(reader.logits, pictures)
        timings = bench.interleave(calls, rounds)
        for (runtime, precision), timing in timings.items():
            row = bench.row(
                runtime,
                precision,
                f"batch {batch}",
                timing,
                amount=batch,
                unit="pictures/s",
                torch=timings["torch eager", "FP32"],
                model_mb=bench.size_mb(folders[precision]),
            )
            rows.append(row)
    return rows


def main() -> None:
    with bench.exclusive() as load:
        rows = speed(rounds=50)
    report.save_bench(paths.notebook_dir(__package__).name, rows, load)


if __name__ == "__main__":
    main()
