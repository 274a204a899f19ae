"""From PyTorch to OpenVINO: the noise gate in two forms, and a language model that other notebooks share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import openvino as ov
import torch

from notebooks.arm import data
from notebooks.arm.network import NoiseGate
from utils.models import llm, llm_folders, portable, tracing

# Values of MODEL. checkpoint: in checkpoints.toml; ram_gb: memory for its export.
MODELS = {"tiny": {"checkpoint": "smollm2", "ram_gb": 4}, "released": {"checkpoint": "qwen2_5_1_5b", "ram_gb": 12}}
SAMPLES = 512  # of the sound to trace with


def gate(right_on_arm: bool = False) -> ov.Model:
    """The noise gate with an input `sound` [1, samples] and an output `clean` of the same shape.

    right_on_arm: whether it has none of the forms that the plugin for ARM computes wrongly.
    """
    sound = {"sound": torch.zeros(1, SAMPLES)}
    model = tracing.trace(NoiseGate(choice=right_on_arm).eval(), sound, [[1, -1]], ["clean"])
    return portable.lift_transposed_convolutions(model) if right_on_arm else model


def gate_int8() -> ov.Model:
    """The noise gate that is right on ARM, quantised to 8 bits with the noisy melody as its calibration."""
    import nncf

    nncf.set_log_level(logging.ERROR)
    return nncf.quantize(gate(right_on_arm=True), nncf.Dataset([[data.noisy()]]), subset_size=1)


def graphs() -> dict[str, Callable[[], ov.Model]]:
    """What `make arm` runs: the noise gate that is right on ARM, and its quantised form."""
    return {"gate": partial(gate, right_on_arm=True), "gate in 8 bits": gate_int8}


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of a language model, or of the checkpoint at CHECKPOINT."""
    return llm_folders.checkpoint_folder(MODELS, model)


def prepare(model: str = "tiny") -> Path:
    """The FP16 IR folder of a language model. Raises ValueError for an unknown name, preflight.NotEnough where memory
    or disk is too small."""
    if model not in MODELS:
        raise ValueError(f"There is no model {model!r}. Models: {', '.join(MODELS)}.")
    settings = MODELS[model]
    return llm.ir_folder(settings["checkpoint"], checkpoint_folder(model), ram_gb=settings["ram_gb"])


def read(path: str | Path) -> ov.Model:
    """The model in a file. Raises ValueError for what is no model."""
    try:
        return ov.Core().read_model(path)
    except RuntimeError as error:
        raise ValueError(f"{Path(path).name} is no model that OpenVINO reads. Give an .xml or .onnx file.") from error


def examined(model: ov.Model) -> str:
    """A line for each operation in a form that is wrong on ARM."""
    names = portable.wrong_on_arm(model)
    return "\n".join(f"wrong on ARM: {name}" for name in names) or "no operation in a form that is known to be wrong"
