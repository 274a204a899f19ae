"""Run a model on two processors, and see whether they compute the same and with which kernels.

Needs openvino and numpy, nothing else: copy this file to both machines. On the processor that you trust:

    save(run("model.xml", inputs, "f32"), "trusted.npz")

On the other one, with the same files, `python pipeline.py model.xml trusted.npz` repeats the run and prints the largest
difference and the kernels. Its exit status is 1 where the difference is larger than LIMITS allows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date as calendar
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov

HINT = "INFERENCE_PRECISION_HINT"
# Activations are not quantised on the fly, which x86 would do and ARM would not.
EXACT = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "KV_CACHE_PRECISION": "f32"}
LIMITS = {"f32": 0.001, "f16": 0.1, "bf16": 0.1}  # of a difference, relative to the largest number of an output
NOT_EXECUTED = ("Const", "Input", "Output")
FAMILIES = {  # part of a kernel's name -> who wrote the kernel; the first that fits
    "acl": "Arm Compute Library",
    "kleidiai": "KleidiAI",
    "brg": "oneDNN, blocked products",
    "mlas": "MLAS",
    "jit": "code generated at compilation",
    "gemm": "a library of matrix products",
    "ref": "plain C++ loops",
}


class Layer(NamedTuple):
    """An executed operation: its type, its kernel, such as "acl", the precision of its arithmetic, and its name.

    OpenVINO gives kernel and precision in one text, `primitiveType`; its `runtimePrecision` can be that of the weights.
    """

    kind: str
    kernel: str
    precision: str
    name: str

    @property
    def family(self) -> str:
        """Who wrote the kernel: a value of FAMILIES, or "no kernel of its own"."""
        return next((name for part, name in FAMILIES.items() if part in self.kernel), "no kernel of its own")


@dataclass(frozen=True)
class Run:
    """What a processor computed. inputs, outputs: arrays in the order of the model's ports; model: `fingerprint`;
    precision: of the arithmetic, as the compiled model reports it; date: YYYY-MM-DD."""

    processor: str
    precision: str
    model: str
    date: str
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    layers: list[Layer]


def run(model: str | Path | ov.Model, inputs: Sequence[np.ndarray], precision: str | None = None) -> Run:
    """Run a model (or the .xml or .onnx file of one) on the CPU. precision: "f32", "f16", "bf16", or the default.

    Raises ValueError for inputs that the model does not take, and for a model that does not compile.
    """
    core = ov.Core()
    try:
        model = model if isinstance(model, ov.Model) else core.read_model(model)
        compiled = core.compile_model(model, "CPU", EXACT | ({HINT: precision} if precision else {}))
        outputs = [np.array(value) for value in compiled(list(inputs)).values()]
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ValueError(f"The model does not run on this processor. OpenVINO says: {lines[-1]}") from error
    return Run(
        processor=f"{core.get_property('CPU', 'FULL_DEVICE_NAME').strip()} ({platform.machine()})",
        precision=compiled.get_property(HINT).to_string(),
        model=fingerprint(model),
        date=calendar.today().isoformat(),
        inputs=list(inputs),
        outputs=outputs,
        layers=layers(compiled),
    )


def layers(compiled: ov.CompiledModel) -> list[Layer]:
    """The operations that a compiled model executes, in their order, without constants, inputs and outputs."""
    nodes = [(node.get_friendly_name(), node.get_rt_info()) for node in compiled.get_runtime_model().get_ops()]
    found = []
    for name, info in sorted(nodes, key=lambda node: int(_text(node[1], "execOrder"))):
        kind, (kernel, _, precision) = _text(info, "layerType"), _text(info, "primitiveType").rpartition("_")
        if kind not in NOT_EXECUTED:
            found.append(Layer(kind, kernel, precision.lower(), name))
    return found


def kernels(layers: Iterable[Layer]) -> Counter:
    """How many layers there are of each (type, kernel, precision)."""
    return Counter((layer.kind, layer.kernel, layer.precision) for layer in layers)


def difference(ours: Run, trusted: Run) -> float:
    """The largest difference of two runs, relative to the largest number of an output; infinity for other shapes."""
    largest = 0.0
    for one, other in zip(ours.outputs, trusted.outputs, strict=True):
        if one.shape != other.shape:
            return float("inf")
        gap = np.abs(one.astype(float) - other).max(initial=0) / max(np.abs(other).max(initial=0), 1e-12)
        largest = max(largest, float(gap) if np.isfinite(gap) else float("inf"))
    return largest


def agrees(ours: Run, trusted: Run) -> bool:
    """Whether a run computes what a trusted one computes, as far as its precision allows."""
    return difference(ours, trusted) <= LIMITS[ours.precision]


def fingerprint(model: ov.Model) -> str:
    """16 digits that follow from the types and shapes of a model's operations, but not from names and weights."""
    parts = (f"{node.get_type_name()} {node.get_output_partial_shape(0)}" for node in model.get_ordered_ops()
             if node.get_output_size())  # fmt: skip
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:16]


def save(one: Run, file: str | Path) -> None:
    """Write a run to an .npz file."""
    arrays = {f"{kind}_{i}": array for kind in ("inputs", "outputs") for i, array in enumerate(getattr(one, kind))}
    about = {name: value for name, value in asdict(one).items() if name not in ("inputs", "outputs")}
    np.savez_compressed(file, about=json.dumps(about), **arrays)


def load(file: str | Path) -> Run:
    """Read what `save` wrote. Raises ValueError for another file."""
    try:
        with np.load(file) as stored:
            about = json.loads(str(stored["about"]))
            names = sorted(stored.files, key=lambda name: int(name.rpartition("_")[2]) if "_" in name else -1)
            arrays = {kind: [stored[name] for name in names if name.startswith(kind)] for kind in ("inputs", "outputs")}
        return Run(**about | arrays | {"layers": [Layer(*layer) for layer in about["layers"]]})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{Path(file).name} holds no run ({error}). Write it with `save`.") from error


def _text(info, key: str) -> str:
    return info[key].astype(str)


def main() -> int:
    parser = argparse.ArgumentParser(description="Repeat a run on this processor and compare the results.")
    parser.add_argument("model", help="the .xml or .onnx file")
    parser.add_argument("trusted", help="the .npz file of a run elsewhere")
    parser.add_argument("--precision", choices=list(LIMITS), help="of the arithmetic (default: the processor's own)")
    parser.add_argument("--save", metavar="FILE", help="write this run to an .npz file")
    options = parser.parse_args()
    try:
        trusted = load(options.trusted)
        ours = run(options.model, trusted.inputs, options.precision)
        if ours.model != trusted.model:
            raise ValueError(
                f"{options.trusted} is a run of another model, or of another OpenVINO. Copy both files again."
            )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.save:
        save(ours, options.save)
    for (kind, kernel, precision), count in kernels(ours.layers).most_common():
        print(f"{count:4} {kind:28} {kernel:24} {precision}")
    same = agrees(ours, trusted)
    print(f"{ours.processor} in {ours.precision}: largest difference {difference(ours, trusted):.6f}, "
          f"{'agrees' if same else 'DIFFERS'}")  # fmt: skip
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
