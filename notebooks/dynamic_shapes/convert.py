"""From PyTorch to OpenVINO: the small networks with a dynamic length, and a language model that reads without state."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import openvino as ov
import torch

from notebooks.dynamic_shapes.network import SMALL, WIDTH, encoder, small, vocoder
from utils.models import llm, llm_folders, portable
from utils.models.llm import MODEL_XML

MASKED = ("encoder", "vocoder")  # networks with a second input, the mask [batch, n]
# Values of MODEL. checkpoint: in checkpoints.toml; ram_gb: memory for its export.
MODELS = {"tiny": {"checkpoint": "smollm2", "ram_gb": 4}, "released": {"checkpoint": "qwen2_5_1_5b", "ram_gb": 12}}


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of a model, or of the checkpoint at CHECKPOINT."""
    return llm_folders.checkpoint_folder(MODELS, model)


def prepare(model: str = "tiny") -> Path:
    """The FP16 IR folder of a language model, which other notebooks share.

    Raises ValueError for an unknown name, preflight.NotEnough where memory or disk is too small.
    """
    if model not in MODELS:
        raise ValueError(f"There is no model {model!r}. Models: {', '.join(MODELS)}.")
    settings = MODELS[model]
    return llm.ir_folder(settings["checkpoint"], checkpoint_folder(model), ram_gb=settings["ram_gb"])


def reader(folder: Path) -> ov.Model:
    """The language model of an IR folder without its cache: it reads a text, all tokens at once.

    What the model would read from its cache is replaced by the cache's initial value, which is empty.
    """
    model = ov.Core().read_model(folder / MODEL_XML)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ReadValue":
            node.output(0).replace(node.input_value(0))
    for sink in model.get_sinks():
        model.remove_sink(sink)
    for variable in model.get_variables():
        model.remove_variable(variable)
    return model


def to_ir(name: str) -> ov.Model:
    """One of the networks by its name ("encoder", "vocoder" or one of SMALL), with a dynamic batch and length.

    Its transposed convolutions run along two axes, since ARM computes those along one axis wrongly.
    """
    network, arguments, names = _traced(name)
    shapes = [ov.PartialShape([-1, -1, *argument.shape[2:]]) for argument in arguments]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        model = ov.convert_model(network, example_input=arguments, input=shapes)
    for port, own in zip([*model.inputs, *model.outputs], [*names, "y"], strict=True):
        port.get_tensor().set_names({own})
    return portable.lift_transposed_convolutions(model)


def graphs() -> dict[str, Callable[[], ov.Model]]:
    """What `make arm` runs: all networks."""
    return {name: partial(to_ir, name) for name in (*MASKED, *SMALL)}


def to_onnx(name: str, file: Path) -> None:
    """The same network as an ONNX file."""
    network, arguments, names = _traced(name)
    axes = {own: {0: "batch", 1: "n"} for own in names}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, arguments, file, input_names=names, output_names=["y"], dynamic_axes=axes,
                          dynamo=False)  # fmt: skip


def _traced(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], list[str]]:
    """A network, inputs to trace it with, and their names."""
    network, width = network_of(name)
    inputs = {"x": torch.zeros(2, 5, width)} | ({"mask": torch.ones(2, 5)} if name in MASKED else {})
    return network, tuple(inputs.values()), list(inputs)


def network_of(name: str) -> tuple[torch.nn.Module, int]:
    """A network with random weights, and the width of its input x. Raises ValueError for an unknown name."""
    if name in SMALL:
        return small(name), SMALL[name][1]
    if name not in MASKED:
        raise ValueError(f"There is no network {name!r}. Choose one of: encoder, vocoder, {', '.join(SMALL)}.")
    return (encoder() if name == "encoder" else vocoder()), WIDTH
