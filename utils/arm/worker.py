"""Runs a model on the CPU device. As a program, it is what the emulated processor runs; numpy and openvino suffice."""

import sys
from pathlib import Path

import numpy as np
import openvino as ov

# Activations are not quantised on the fly, which x86 would do and ARM would not.
EXACT = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "KV_CACHE_PRECISION": "f32"}


def compiled(model: str | Path | ov.Model, precision: str) -> ov.CompiledModel:
    """The model, compiled to compute in `precision`, "f32" or "f16"."""
    return ov.Core().compile_model(model, "CPU", EXACT | {"INFERENCE_PRECISION_HINT": precision})


def main(model: str, inputs: str, folder: str, *precisions: str) -> None:
    """Write what the model computes of the arrays in the file `inputs` to folder/PRECISION.npz, or an error to
    folder/PRECISION.txt."""
    arrays = list(np.load(inputs).values())
    for precision in precisions:
        try:
            outputs = compiled(model, precision)(arrays)
        except RuntimeError as error:
            Path(folder, f"{precision}.txt").write_text(str(error), encoding="utf-8")
        else:
            np.savez(Path(folder, f"{precision}.npz"), *outputs.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
