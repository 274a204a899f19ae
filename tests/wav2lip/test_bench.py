"""The speed rows: every runtime computes the same, ratios are to PyTorch, the rest is written as it is shown."""

import av
import numpy as np
import pytest
import torch

from notebooks.wav2lip.measuring import bench
from notebooks.wav2lip.pipeline import lip_sync
from tests.wav2lip import small
from utils import report


@pytest.fixture(scope="module")
def network():
    return small.generator()


def test_the_network_of_random_weights_is_always_the_same():
    made, again = bench.random_network(small.WIDTH), bench.random_network(small.WIDTH)
    given = bench.random_inputs(2)
    assert (small.run(made, *given.values()) == small.run(again, *given.values())).all()


def test_all_runtimes_compute_the_same(network, generator_ir, int8_ir, tmp_path):
    given = bench.random_inputs(2)
    expected = small.run(network, given["audio"], given["face"])
    runs = {
        "eager": (bench.eager(network, "FP32"), 1e-5),
        "eager, channels last": (bench.channels_last(network, "FP32"), 1e-5),
        "eager BF16": (bench.eager(network, "BF16"), 0.03),
        "onnxruntime": (bench.onnx(network, tmp_path), 1e-5),
        "onnxruntime INT8": (bench.onnx(network, tmp_path, "INT8"), 0.1),
        "openvino": (bench.openvino(generator_ir, "FP32"), 1e-5),
        "openvino BF16": (bench.openvino(generator_ir, "BF16"), 0.03),
        "openvino INT8": (bench.openvino(int8_ir, "INT8"), 0.1),
    }
    for name, (run, tolerance) in runs.items():
        assert np.abs(run(given) - expected).max() < tolerance, name


@pytest.mark.parametrize("faster", ["FP32", "BF16"])
def test_rows_name_every_peer_and_pass_the_schema(generator_ir, int8_ir, tmp_path, monkeypatch, faster):
    monkeypatch.setattr(bench.bench, "torch_precision", lambda: faster)
    rows = bench.generator_rows(small.WIDTH, {"FP32": generator_ir, "INT8": int8_ir}, (1, 2), rounds=1)
    names = {(row["runtime"], row["precision"]) for row in rows if row["workload"] == "generator, batch 2"}
    floats = {"FP32", faster}
    torch_names = {(name, p) for name in ("torch eager", "torch eager, channels last") for p in floats}
    assert names == torch_names | {("onnxruntime", p) for p in ("FP32", "INT8")} | {
        ("openvino", p) for p in floats | {"INT8"}
    }
    assert len(rows) == 2 * len(names)
    path = report.save("wav2lip", model="tiny", device="CPU", parity=[], quality=[], speed=rows, folder=tmp_path)
    assert len(report.load(path)["speed"]) == len(rows)


def test_operations_are_those_of_the_layers(network):
    counted = 0

    def count(layer, inputs, output):
        nonlocal counted
        places = inputs[0] if isinstance(layer, torch.nn.ConvTranspose2d) else output
        counted += 2 * layer.weight.numel() * places.shape[2] * places.shape[3]

    handles = [
        layer.register_forward_hook(count)
        for layer in network.modules()
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.ConvTranspose2d))
    ]
    small.run(network, *bench.random_inputs(1).values())
    for handle in handles:
        handle.remove()
    assert bench.gflop(network) == pytest.approx(counted / 1e9)


def test_limits_are_shares_of_a_convolution_measured_in_the_same_run(network, monkeypatch):
    monkeypatch.setattr(bench, "convolution_gflops", lambda precision: 100.0)
    monkeypatch.setattr(bench.bench, "torch_precision", lambda: "BF16")
    monkeypatch.setattr(bench, "gflop", lambda network: 4.0)
    measured = [
        ("openvino", "FP32", 10.0),
        ("openvino", "FP32", 12.5),
        ("openvino", "BF16", 15.0),
        ("openvino", "INT8", 17.5),
        ("torch eager", "FP32", 20.0),
    ]
    notes = bench.limits(
        [dict(zip(("runtime", "precision", "throughput"), row, strict=True)) for row in measured], network
    )
    shares = [notes[f"share of it that the generator reaches at {name}"] for name in ("FP32", "BF16", "INT8")]
    assert shares == [0.5, 0.6, 0.7]


@pytest.mark.parametrize("precision", ["FP32", "BF16", "INT8"])
def test_a_large_convolution_is_measured_at_every_precision(precision):
    assert bench.convolution_gflops(precision, channels=8, side=4, batch=1, layers=2) > 0


@pytest.fixture
def drawn(monkeypatch, generator_ir):
    """Short clips of a plain picture, in which a detector of the test's own sees a face."""

    def sample_video(path, size, seconds):
        width, height = size
        with av.open(str(path), "w") as file:
            stream = file.add_stream("libx264", rate=25, width=width, height=height, pix_fmt="yuv420p")
            for _ in range(round(seconds * 25)):
                frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), 128, np.uint8), "bgr24")
                file.mux(stream.encode(frame))
            file.mux(stream.encode(None))

    class Detector:
        def __init__(self, path, device):
            pass

        def __call__(self, frame):
            return np.array([[20, 10, 60, 50, 0.9]], np.float32)

    monkeypatch.setattr(bench.clips, "sample_video", sample_video)
    monkeypatch.setattr(lip_sync, "FaceDetector", Detector)
    monkeypatch.setattr(bench.convert, "prepare", lambda part="wav2lip": generator_ir)
    monkeypatch.setattr(bench, "SIZES", {"360p": (96, 64)})


def test_whole_videos_are_timed_by_their_frames(drawn, generator_ir):
    rows, notes = bench.videos({("BF16", "toy"): generator_ir}, rounds=1, seconds=0.4)
    assert [row["workload"] for row in rows] == ["0.4 s of 360p video", "0.4 s of 360p video, static"]
    for row in rows:
        assert row["throughput"] * row["median_ms"] / 1e3 == pytest.approx(10) and row["label"] == "toy"
    slowest = {value for name, value in notes.items() if name.startswith("slowest stage")}
    shares = [value for name, value in notes.items() if name.startswith("share of the time that it works")]
    assert slowest <= {"read", "hear", "detect", "draw", "write"} and len(notes) == 4
    assert len(shares) == 2 and all(0 < share <= 1 for share in shares)


def test_memory_is_that_of_a_process_for_each_length(drawn, monkeypatch):
    made = []

    def peak_rss_mb(function, *args):
        function(*args)
        made.append(frame_count(args[2].with_name("result.mp4")))
        return 1000.4

    monkeypatch.setattr(bench.bench, "peak_rss_mb", peak_rss_mb)
    notes = bench.memory((0.4, 0.8))
    assert made == [10, 20]
    assert notes == {f"peak memory for {n} s of 360p video, MB": 1000 for n in (0.4, 0.8)}


def frame_count(path) -> int:
    with av.open(str(path)) as file:
        return sum(1 for _ in file.decode(video=0))


def test_the_committed_measurements_are_those_that_the_notebook_shows():
    stored = report.load(report.BENCH / "wav2lip.json")
    workloads = {row["workload"] for row in stored["speed"]}
    assert {f"generator, batch {batch}" for batch in bench.BATCHES} <= workloads
    assert {f"{bench.TIMED_VIDEO_S} s of {size} video" for size in bench.SIZES} <= workloads
    assert any(row.get("label") == bench.SPEED_ONLY for row in stored["speed"])


def test_the_table_of_videos_has_a_line_for_each_and_a_column_for_each_generator():
    table = bench.video_table(report.load(bench.RESULTS))
    assert table.header == ["Frames a second", "tiny, BF16", "released size, BF16", "released size, INT8"]
    assert [row[0] for row in table.rows] == [
        f"8 s of {size} video{static}" for size in bench.SIZES for static in ("", ", static")
    ]
    assert all(float(cell) > 10 for row in table.rows for cell in row[1:])
