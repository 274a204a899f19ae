"""PyTorch to OpenVINO IR, and INT8 by NNCF. `prepare` does it for the checkpoints of this notebook and caches it."""

from __future__ import annotations

import logging
from pathlib import Path

import openvino as ov
import torch

from notebooks.new_case import data, network
from notebooks.new_case.pipeline import MODEL_XML, SIDE
from utils import convert, weights

MODELS = {"tiny": "new_case_tiny"}  # MODEL: the checkpoint's name in checkpoints.toml; add `released` here
PRECISIONS = ("FP32", "INT8")
CALIBRATION = 300  # pictures


def to_ir(checkpoint: Path, folder: Path) -> None:
    """Write the IR of the network in the folder `checkpoint`."""
    trace(network.load(checkpoint), folder / MODEL_XML)


def trace(model: torch.nn.Module, path: Path) -> None:
    """Write the IR of a network with the input `pictures` [n, 8, 8] and the output `logits` [n, 10], in FP32."""
    converted = ov.convert_model(model, example_input=torch.zeros(2, SIDE, SIDE), input=[-1, SIDE, SIDE])
    converted.input(0).get_tensor().set_names({"pictures"})
    converted.output(0).get_tensor().set_names({"logits"})
    ov.save_model(converted, path, compress_to_fp16=False)


def quantize(ir: Path, folder: Path) -> None:
    """Write the IR in the folder `ir` with INT8 layers, calibrated on pictures of the training set."""
    import nncf

    nncf.set_log_level(logging.ERROR)
    pictures = data.training_set().pictures[:CALIBRATION]
    batches = nncf.Dataset([pictures[i : i + 1] for i in range(CALIBRATION)])
    quantized = nncf.quantize(ov.Core().read_model(ir / MODEL_XML), batches, subset_size=CALIBRATION)
    ov.save_model(quantized, folder / MODEL_XML, compress_to_fp16=False)


def load(model: str = "tiny") -> network.DigitNetwork:
    """The network that MODEL names, with its weights. CHECKPOINT names another folder of the same kind."""
    return network.load(checkpoint(model))


def prepare(model: str = "tiny", precision: str = "FP32") -> Path:
    """The IR folder of a model at a precision, converted once and then cached. Raises ValueError for unknown names."""
    source = checkpoint(model)
    if precision not in PRECISIONS:
        raise ValueError(f"There is no precision {precision!r}. Choose one of: {', '.join(PRECISIONS)}.")

    @convert.cached(f"new_case-{model}-{precision.lower()}", checkpoint=source)
    def build(folder: Path) -> None:
        if precision == "FP32":
            to_ir(source, folder)
        else:
            quantize(prepare(model), folder)

    return build()


def checkpoint(model: str = "tiny") -> Path:
    """The checkpoint's folder. Raises ValueError for an unknown name."""
    if model not in MODELS:
        raise ValueError(f"There is no model {model!r}. Choose one of: {', '.join(MODELS)}.")
    return weights.resolve(MODELS[model])
