"""Measures the speed of Wav2Lip and its peers: `python -m notebooks.wav2lip.measuring`.

The notebook runs `live`, which measures the tiny generator. All other measurements take minutes, and the notebook
reads them from the file that `main` writes, results/bench/wav2lip.json: the generator at the released width, whole
videos, and memory over ten minutes. `--memory` measures memory alone and keeps the other results.
"""

from __future__ import annotations

import argparse
import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import openvino as ov
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from notebooks.wav2lip import convert
from notebooks.wav2lip.data import clips
from notebooks.wav2lip.network import Conv, Upsample, Wav2Lip
from notebooks.wav2lip.pipeline import SAMPLE_RATE, LipSync
from utils import bench, report
from utils.speech.sound import write_wav
from utils.tables import Table, number

BATCHES = (1, 16)
SIZES = {"360p": (640, 360), "720p": (1280, 720)}  # width, height
TIMED_VIDEO_S = 8
MEMORY_VIDEO_S = 600  # its peak memory is compared with that of a video of TIMED_VIDEO_S
MEMORY_PREFIX = "peak memory "  # of the notes on memory
RESULTS = report.BENCH / "wav2lip.json"
SPEED_ONLY = "released size, random weights, speed only"
TYPES = {"FP32": torch.float32, "BF16": torch.bfloat16}
HINTS = {"FP32": "f32", "BF16": "bf16", "INT8": "bf16"}  # bf16: the operations of an INT8 graph that stay unquantised
Item = dict[str, np.ndarray]
Run = Callable[[Item], object]
Workloads = dict[str, Callable[[], object]]
Source = str | float  # a model of the collection, or the width of one with random weights


def random_network(width: float = 1.0) -> Wav2Lip:
    """A generator with random weights, of use only for speed and for comparing computations."""
    torch.manual_seed(0)
    network = Wav2Lip(width).eval()
    for tensor in network.state_dict().values():
        if tensor.ndim == 1:  # biases of 0 and normalisations by 1 would be removed from the graph
            tensor.add_(0.1 * torch.rand_like(tensor))
    return network


def load(source: Source) -> Wav2Lip:
    """A generator with its trained weights, or one with random weights."""
    return convert.load("wav2lip", source) if isinstance(source, str) else random_network(source)


def random_inputs(batch: int = 2, seed: int = 0) -> Item:
    """Random inputs: mel windows, and faces whose first copy is black in its lower half."""
    rng = np.random.default_rng(seed)
    face = rng.random((batch, *convert.FACE), dtype=np.float32)
    face[:, :3, 48:] = 0
    return {"audio": rng.uniform(-4, 4, (batch, *convert.AUDIO)).astype(np.float32), "face": face}


def fold_batch_norm(network: Wav2Lip) -> Wav2Lip:
    """A copy with batch normalisations folded into the convolutions, for the peers; OpenVINO does so by itself."""
    network = copy.deepcopy(network)
    for layer in network.modules():
        if isinstance(layer, (Conv, Upsample)):
            layer.conv_block = nn.utils.fuse_conv_bn_eval(*layer.conv_block, transpose=isinstance(layer, Upsample))
    return network


def eager(network: Wav2Lip, precision: str, layout=torch.contiguous_format) -> Run:
    """PyTorch eager, with folded normalisations and weights in the type of the arithmetic."""
    network = fold_batch_norm(network).to(TYPES[precision], memory_format=layout)

    def run(item: Item) -> np.ndarray:
        audio, face = (torch.from_numpy(x).to(TYPES[precision], memory_format=layout) for x in item.values())
        with torch.inference_mode():
            return network(audio, face).float().numpy()

    return run


def channels_last(network: Wav2Lip, precision: str) -> Run:
    """PyTorch eager, with the channels last in memory."""
    return eager(network, precision, torch.channels_last)


def compiled(network: Wav2Lip, precision: str) -> Run:
    """torch.compile for each batch size, with frozen weights. Compiling takes minutes, so only `main` does it."""
    graph = torch.compile(fold_batch_norm(network).to(TYPES[precision]), dynamic=False, options={"freezing": True})

    def run(item: Item) -> np.ndarray:
        with torch.no_grad():
            return graph(*(torch.from_numpy(x).to(TYPES[precision]) for x in item.values())).float().numpy()

    return run


def onnx(network: Wav2Lip, folder: Path, precision: str = "FP32") -> Run:
    """ONNX Runtime on the exported network, with all cores and optimizations (its default).

    INT8 is ONNX Runtime's static quantisation: unsigned activations, signed kernels per channel.
    """
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        batches = iter([random_inputs(4)])

        def get_next(self) -> Item | None:
            return next(self.batches, None)

    path = folder / "wav2lip.onnx"
    with torch.no_grad():
        torch.onnx.export(
            fold_batch_norm(network),
            tuple(torch.from_numpy(x) for x in random_inputs(2).values()),
            str(path),
            input_names=["audio", "face"],
            output_names=["faces"],
            dynamic_axes={name: {0: "batch"} for name in ("audio", "face", "faces")},
            dynamo=False,
        )
    if precision == "INT8":
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        logger = logging.getLogger()
        level = logger.level
        logger.setLevel(logging.ERROR)  # it recommends a preparation that changes nothing here
        quantize_static(path, folder / "int8.onnx", Reader(), per_channel=True, **types)
        logger.setLevel(level)
        path = folder / "int8.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda item: session.run(None, item)[0]


def openvino(path: Path, precision: str) -> Run:
    """OpenVINO, one request on all cores. precision: of the arithmetic."""
    settings = {"INFERENCE_PRECISION_HINT": HINTS[precision], "PERFORMANCE_HINT": "LATENCY"}
    request = ov.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda item: request.infer(item, share_inputs=True)["faces"]


def generator_rows(
    source: Source,
    paths: dict[str, Path],
    batches: tuple[int, ...],
    rounds: int,
    compiling: bool = False,
    label: str | None = None,
) -> list[dict]:
    """Speed rows of the generator, every runtime in a process of its own. paths: precision ("FP32", "INT8") -> IR.

    BF16 rows exist where the processor has BF16. compiling: whether torch.compile is among the runtimes.
    """
    sizes = {precision: bench.size_mb(path) for precision, path in paths.items()}
    forms = {"torch eager": eager, "torch eager, channels last": channels_last}
    forms |= {"torch.compile": compiled} if compiling else {}
    settings = []
    for precision in bench.torch_precisions():
        for name, form in forms.items():
            settings.append(bench.Setting(name, precision, start_torch, (form, source, precision, batches)))
        arguments = (paths["FP32"], precision, batches)
        settings.append(bench.Setting("openvino", precision, start_openvino, arguments, sizes["FP32"]))
    for precision, path in paths.items():
        settings.append(bench.Setting("onnxruntime", precision, start_onnx, (source, precision, batches)))
        if precision == "INT8":
            settings.append(bench.Setting("openvino", "INT8", start_openvino, (path, "INT8", batches), sizes["INT8"]))
    workloads = [bench.Workload(f"generator, batch {batch}", batch, "frames/s") for batch in batches]
    return bench.compare(settings, workloads, rounds, warmup=2, label=label)


def start_torch(form: Callable, source: Source, precision: str, batches: tuple[int, ...]) -> Workloads:
    """The workloads of PyTorch: eager in either memory layout, or compiled."""
    return for_batches(form(load(source), precision), batches)


def start_onnx(source: Source, precision: str, batches: tuple[int, ...]) -> Workloads:
    """The workloads of ONNX Runtime."""
    with TemporaryDirectory() as scratch:
        return for_batches(onnx(load(source), Path(scratch), precision), batches)


def start_openvino(path: Path, precision: str, batches: tuple[int, ...]) -> Workloads:
    """The workloads of OpenVINO."""
    return for_batches(openvino(path, precision), batches)


def for_batches(run: Run, batches: tuple[int, ...]) -> Workloads:
    """A workload for each batch size, by name."""
    return {f"generator, batch {batch}": partial(run, random_inputs(batch)) for batch in batches}


@bench.live
def live(fp32: Path, int8: Path, model: str = "tiny", rounds: int = 5) -> list[dict]:
    """Speed rows that the notebook measures. fp32, int8: the IRs of the generator of `model`."""
    return generator_rows(model, {"FP32": fp32, "INT8": int8}, BATCHES, rounds)


def gflop(network: Wav2Lip) -> float:
    """Billions of floating-point operations (multiply and add count apart) for one face."""
    shapes = copy.deepcopy(network).to("meta")
    with FlopCounterMode(display=False) as counter:
        shapes(*(torch.empty(1, *shape, device="meta") for shape in (convert.AUDIO, convert.FACE)))
    return counter.get_total_flops() / 1e9


def convolution_gflops(precision: str, channels: int = 256, side: int = 24, batch: int = 8, layers: int = 8) -> float:
    """Billions of operations a second in large 3x3 convolutions, best of five, as the peak of the machine.

    precision: "FP32", "BF16" or "INT8". There are several layers, because input and output are converted to another
    type and order in memory, which would take as long as a single one in BF16.
    """
    torch.manual_seed(0)
    stack = nn.Sequential(*(nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(layers)))
    x = np.random.default_rng(0).random((batch, channels, side, side), dtype=np.float32)
    model = ov.convert_model(stack, example_input=torch.from_numpy(x), input=list(x.shape))
    if precision == "INT8":
        model = convert.quantized(model, [x])
    settings = {"INFERENCE_PRECISION_HINT": HINTS[precision]}
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    best = min(bench.interleave({"stack": lambda: request.infer([x], share_inputs=True)}, rounds=5)["stack"].samples)
    return 2 * 9 * channels**2 * side**2 * batch * layers / 1e6 / best


def limits(rows: list[dict], network: Wav2Lip) -> dict[str, float]:
    """The share of the machine's peak that OpenVINO reaches at its best batch in `rows`; peaks measured now."""
    work = gflop(network)
    notes = {"operations of the generator for a frame, GFLOP": round(work, 2)}
    for precision in (*bench.torch_precisions(), "INT8"):
        ours = [row["throughput"] for row in rows if (row["runtime"], row["precision"]) == ("openvino", precision)]
        peak = convolution_gflops(precision)
        notes[f"large {precision} convolutions, GFLOP/s"] = round(peak)
        notes[f"share of it that the generator reaches at {precision}"] = round(work * max(ours) / peak, 2)
    return notes


def sample_files(folder: Path, size: tuple[int, int], seconds: float) -> tuple[Path, Path]:
    """Files in `folder`: a video of a drawn head, of a size (width, height), and noise of varying loudness."""
    face, voice = folder / "face.mp4", folder / "voice.wav"
    clips.sample_video(face, size, seconds)
    t = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    noise = np.random.default_rng(0).standard_normal(len(t)) * np.sin(2 * np.pi * 3 * t) ** 2 / 10
    write_wav(voice, noise, SAMPLE_RATE)
    return face, voice


def videos(
    generators: dict[tuple[str, str | None], Path], rounds: int, seconds: float = TIMED_VIDEO_S
) -> tuple[list[dict], dict[str, str | float]]:
    """Speed rows of whole videos, from file to file, and notes on what bounds them.

    generators: (precision, label) -> IR. The whole face is pasted, as the authors do. The stages overlap, so not their
    sum but the slowest one has to explain the time: the notes have its name and the share of the time that it worked.
    """
    detector, rows, notes = convert.prepare("face_detection"), [], {}
    for name, size in SIZES.items():
        with TemporaryDirectory() as scratch:
            face, voice = sample_files(Path(scratch), size, seconds)
            out, reports, calls = Path(scratch) / "result.mp4", {}, {}
            for (precision, label), ir in generators.items():
                sync = LipSync(ir, detector, INFERENCE_PRECISION_HINT=HINTS[precision])
                for static in (False, True):
                    key = precision, label, f"{seconds:g} s of {name} video{', static' if static else ''}"
                    calls[key] = storing(
                        reports, key, partial(sync, face, voice, out, static=static, paste="rectangle")
                    )
            for key, timing in bench.interleave(calls, rounds).items():
                precision, label, work = key
                amount = reports[key].frames
                rows.append(bench.row("openvino", precision, work, timing, amount=amount, unit="frames/s", label=label))
                what = ", ".join([work, precision, label] if label else [work, precision])
                slowest = reports[key].limit
                notes[f"slowest stage, {what}"] = slowest
                notes[f"share of the time that it works, {what}"] = round(
                    reports[key].busy[slowest] / reports[key].elapsed, 2
                )
                print(f"{what}: {rows[-1]['throughput']:.0f} frames/s, bound by: {slowest}", flush=True)
    return rows, notes


def video_table(stored: Mapping) -> Table:
    """The frames a second of whole videos in results of `main`: a line for each video, a column for each generator."""
    rows = [row for row in stored["speed"] if "video" in row["workload"]]
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        size = "released size" if row.get("label") else "tiny"
        lines.setdefault(row["workload"], {})[f"{size}, {row['precision']}"] = number(row["throughput"])
    columns = list(next(iter(lines.values())))
    return Table(["Frames a second", *columns], [[name, *line.values()] for name, line in lines.items()])


def storing(results: dict, key, call: Callable[[], object]) -> Callable[[], None]:
    """The call as a function that stores its latest result under a key and returns nothing."""

    def run() -> None:
        results[key] = call()

    return run


def make_video(ir: Path, detector: Path, face: Path, voice: Path) -> None:
    """Produce one result; a new process runs this to measure its memory."""
    LipSync(ir, detector)(face, voice, voice.with_name("result.mp4"))


def memory(lengths: Iterable[float] = (TIMED_VIDEO_S, MEMORY_VIDEO_S)) -> dict[str, float]:
    """Peak memory of a process that makes videos of these lengths (in seconds) with the tiny checkpoint."""
    notes = {}
    for seconds in lengths:
        with TemporaryDirectory() as scratch:
            files = sample_files(Path(scratch), SIZES["360p"], seconds)
            peak = bench.peak_rss_mb(make_video, convert.prepare(), convert.prepare("face_detection"), *files)
            notes[f"{MEMORY_PREFIX}for {seconds:g} s of 360p video, MB"] = round(peak)
    return notes


def measure_all() -> tuple[list[dict], dict]:
    """(speed rows, notes) of the generator at the released width with its peers, and of whole videos."""
    with TemporaryDirectory() as scratch:
        large, width = random_network(), 1.0
        paths = {"FP32": convert.convert_generator(large, Path(scratch) / "wav2lip.xml")}
        paths["INT8"] = convert.quantize(paths["FP32"], [random_inputs(4)], Path(scratch) / "int8.xml")
        rows = generator_rows(width, paths, BATCHES, rounds=5, compiling=True, label=SPEED_ONLY)
        notes = limits(rows, large)
        faster = bench.torch_precision()
        generators = {(faster, None): convert.prepare()}
        generators |= {(faster, SPEED_ONLY): paths["FP32"], ("INT8", SPEED_ONLY): paths["INT8"]}
        whole, bounds = videos(generators, rounds=3)
    return rows + whole, notes | bounds


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write the file of results; with --memory, replace only the notes on memory."""
    parser = argparse.ArgumentParser("python -m notebooks.wav2lip.measuring", description=main.__doc__)
    parser.add_argument("--memory", action="store_true", help="measure memory alone, which needs no quiet machine")
    only_memory = parser.parse_args(arguments).memory
    with bench.exclusive(busy_percent=100 if only_memory else bench.BUSY_PERCENT) as load_at_start:
        table, notes = ([], {}) if only_memory else measure_all()
        peaks = memory()
    if only_memory:
        report.amend(RESULTS, MEMORY_PREFIX, peaks)
    else:
        report.save_bench("wav2lip", table, notes | peaks | load_at_start)
