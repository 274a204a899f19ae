"""Cuts a transformers folder of the Llama family between layers. A stage is a shorter model, too.

Each stage is exported like a model of its own. Then the first one loses its output layer, and the last one its
embedding: hidden states leave and enter there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from notebooks.llm_distributed.convert import cutting
from notebooks.llm_distributed.pipeline.graph import is_weight
from utils.models import llm, tensors
from utils.models.llm import MODEL_XML

STAGE_JSON = "stage.json"
LAYER = re.compile(r"(?<=\.layers\.)\d+(?=\.)")


def convert(checkpoint: Path, options: Mapping, folder: Path) -> None:
    """Write the FP16 IR of each stage to `folder`/stage-0, stage-1, ...

    options: "stages", and "source", a digest of the checkpoint. Raises ValueError for more stages than layers.
    """
    config, stages = cutting.read_config(checkpoint), options["stages"]
    layers = config["num_hidden_layers"]
    if not 1 <= stages <= layers:
        raise ValueError(f"{stages} stages cannot share {layers} layers. Take 1 to {layers} stages.")
    for stage in range(stages):
        first, end = (layers * edge // stages for edge in (stage, stage + 1))
        target = folder / f"stage-{stage}"
        target.mkdir()
        with TemporaryDirectory() as scratch:
            shorter = Path(scratch) / "checkpoint"
            shorter.mkdir()
            llm.to_ir(shorten(checkpoint, first, end, shorter), Path(scratch) / "ir", tokenizer=False)
            model = ov.Core().read_model(Path(scratch) / "ir" / MODEL_XML)
            connect(model, stage == 0, stage == stages - 1)
            ov.save_model(model, target / MODEL_XML)
        about = {"stage": stage, "stages": stages, "layers": [first, end], "source": options["source"]}
        about |= {"hidden_size": config["hidden_size"]}
        (target / STAGE_JSON).write_text(json.dumps(about), encoding="utf-8")


def shorten(checkpoint: Path, first: int, end: int, folder: Path) -> Path:
    """Write a transformers folder with layers first to end - 1 of another one; returns the folder."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    kept = {}
    for file in tensors.shards(checkpoint, "model.safetensors", "language model"):
        with safe_open(file, framework="pt") as source:
            for name in source.keys():  # noqa: SIM118 - no dictionary
                layer = LAYER.search(name)
                if layer is None or first <= int(layer[0]) < end:
                    new = name if layer is None else LAYER.sub(str(int(layer[0]) - first), name)
                    kept[new] = source.get_tensor(name)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    config = cutting.read_config(checkpoint) | {"num_hidden_layers": end - first}
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def connect(model: ov.Model, first: bool, last: bool) -> None:
    """Let the hidden states [batch, tokens, hidden] enter a stage that is not the first, and leave one that is not the
    last."""
    if not last:
        final = [node for node in model.get_ordered_ops() if _adds_to_the_stream(node)][-1]
        logits = model.get_results()[0]
        model.add_outputs(final.output(0))
        model.remove_result(logits)
    if not first:
        (ids,) = (node for node in model.get_parameters() if "input_ids" in node.output(0).names)
        gathers = [node for node in model.get_ordered_ops() if node.get_type_name() == "Gather"]
        tables = [node for node in gathers if is_weight(node.input_value(0))]
        embedding = next(node for node in tables if _depends(node.input_value(1), ids))
        width = embedding.get_output_partial_shape(0)[2].get_length()
        hidden = ops.parameter([-1, -1, width], np.float32, name="hidden")
        hidden.output(0).get_tensor().set_names({"hidden"})
        for reader in list(embedding.output(0).get_target_inputs()):
            reader.replace_source_output(hidden.output(0))
        for reader in list(ids.output(0).get_target_inputs()):
            if reader.get_node().get_type_name() == "ShapeOf":  # the cache wants to know the batch
                reader.replace_source_output(hidden.output(0))
        model.add_parameters([hidden])
        model.remove_parameter(ids)
    model.validate_nodes_and_infer_types()


def _adds_to_the_stream(node: ov.Node) -> bool:
    if node.get_type_name() != "Add" or any(is_weight(value) for value in node.input_values()):
        return False
    sources = [value.get_node() for value in node.input_values()]
    return any(source.get_type_name() == "MatMul" and is_weight(source.input_value(1)) for source in sources)


def _depends(value: ov.Output, parameter: ov.Node) -> bool:
    node = value.get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node.get_friendly_name() == parameter.get_friendly_name()
