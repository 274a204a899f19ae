"""Checkpoints of random weights at any size, laid out as released ones are, and what converting a checkpoint takes.

Both are for measuring speed and memory: random weights are good for nothing else.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter

import psutil
import torch
from safetensors.torch import save_file
from torch import nn

from utils import bench, preflight

WEIGHTS_PER_FILE = 1 << 29  # 1 GB
WATCH_INTERVAL_S = 0.02


def checkpoint(network: nn.Module, config: Mapping, companions: Path, folder: Path) -> Path:
    """Write random weights with the keys and shapes of a network, which may lie on the meta device, to `folder`.

    They are FP16 safetensors in files of WEIGHTS_PER_FILE, of which only one is in memory at a time. config: content of
    config.json. companions: a checkpoint folder whose tokenizer and other small files are copied. Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in companions.iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json" and not file.name.endswith(".index.json"):
            shutil.copy2(file, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    file_of: dict[str, str] = {}  # key: name of its file
    tensors: dict[str, torch.Tensor] = {}  # of the next file
    count = total_bytes = 0

    def write() -> None:
        name = f"model-{len(set(file_of.values())) + 1:05}.safetensors"
        save_file(tensors, folder / name)
        file_of.update(dict.fromkeys(tensors, name))
        tensors.clear()

    for key, shape in ((key, x.shape) for key, x in network.state_dict().items()):
        if count and count + shape.numel() > WEIGHTS_PER_FILE:
            write()
            count = 0
        values = torch.randn(shape, generator=generator)
        if len(shape) > 1:  # matrices keep the scale of their inputs, so that nothing overflows in many layers
            values.mul_((shape.numel() / shape[0]) ** -0.5)
        else:
            values.mul_(0.1).add_(not key.endswith("bias"))
        tensors[key] = values.half()
        count += shape.numel()
        total_bytes += 2 * shape.numel()
    write()
    index = {"metadata": {"total_size": total_bytes}, "weight_map": file_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def conversion_steps(
    to_ir: Callable[[Path, Path], None],
    compress: Callable[[Path, str, int, Path], None],
    checkpoint: Path,
    folder: Path,
    precisions: tuple[str, ...],
    group_size: int,
) -> dict[str, tuple]:
    """For each precision the function that writes its IR, and the arguments, of which the last is a folder in `folder`.

    Parameters as of `timed_conversions`. The steps are to be run in their order.
    """
    steps: dict[str, tuple] = {}
    for precision in precisions:
        target = folder / precision
        if precision == "FP16":
            steps[precision] = (to_ir, checkpoint, target)
        else:
            steps[precision] = (compress, folder / "FP16", precision, group_size, target)
    return steps


def timed_conversions(
    to_ir: Callable[[Path, Path], None],
    compress: Callable[[Path, str, int, Path], None],
    checkpoint: Path,
    folder: Path,
    precisions: tuple[str, ...],
    group_size: int,
    label: str | None = None,
) -> tuple[dict[str, Path], list[dict]]:
    """Convert a checkpoint below `folder`: the IR folders by precision, and a speed row of each conversion.

    to_ir, compress: those of a notebook's `convert`. precisions: of parts.PRECISIONS, "FP16" first, as the others are
    compressed from it. The memory is that of the process which converts; of files mapped into memory, the pages read.
    """
    folders, rows = {}, []
    for precision, step in conversion_steps(to_ir, compress, checkpoint, folder, precisions, group_size).items():
        name = "conversion of the checkpoint" if precision == "FP16" else "compression of the FP16 IR"
        target = folders[precision] = step[-1]
        with MemoryWatch() as watch:
            preflight.in_child(*step, what=f"Making {precision}")
        timing = bench.Timing.of([1e3 * watch.seconds])
        sizes = {"peak_rss_mb": watch.peak_mb, "model_mb": bench.size_mb(target), "label": label}
        row = bench.row("openvino", precision, name, timing, **sizes)
        rows.append(row | {"throughput": None, "unit": None})
        print(f"{name}, {precision}: {watch.seconds:.0f} s, up to {watch.peak_mb:.0f} MB", flush=True)
    return folders, rows


def weights_mb(folder: Path) -> float:
    """Size of a checkpoint's or an IR folder's weights."""
    return sum(bench.size_mb(file) for pattern in ("*.safetensors", "*_model.bin") for file in folder.glob(pattern))


class MemoryWatch:
    """`with MemoryWatch() as watch`: how long the block takes, and the memory of child processes started in it.

    After the block: `seconds`, and `peak_mb`, the most that all of them held together, sampled every WATCH_INTERVAL_S.
    """

    def __enter__(self) -> MemoryWatch:
        self.peak_mb = 0.0
        self._done = threading.Event()
        self._earlier = set(psutil.Process().children(recursive=True))
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        self._begin = perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = perf_counter() - self._begin
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        parent = psutil.Process()
        command = parent.cmdline()
        while not self._done.wait(WATCH_INTERVAL_S):
            children = set(parent.children(recursive=True)) - self._earlier
            self.peak_mb = max(self.peak_mb, sum(_rss(child, command) for child in children) / 1e6)


def _rss(process: psutil.Process, parent_command: list[str]) -> int:
    """Bytes that a process holds; 0 before it executes its program, when it shows its parent's memory as its own."""
    try:
        return process.memory_info().rss if process.cmdline() != parent_command else 0
    except psutil.Error:  # it has just ended
        return 0
