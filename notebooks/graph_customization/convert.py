"""Checkpoints to OpenVINO IR, with one function per step.

    GGUF file   -- gguf.to_transformers -->  transformers folder  -- llm.to_ir -->  FP16 IR with tokenizers
    GPTQ folder -- dequantize_gptq ------->  transformers folder; `read_gptq` returns its 4-bit arrays unchanged
    FP16 IR     -- llm.compress ---------->  INT8 or INT4 IR

`openvino_genai.LLMPipeline` opens the IR folders. `prepare` runs each missing step in a child process, which returns
its memory when it ends, and caches the result. Other notebooks with the same checkpoint and options share the folders.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from notebooks.graph_customization.pipeline import (
    ExposeHiddenState,
    InsertSlice,
    Int4Weight,
    SelectGreedy,
    customize,
    is_head,
    weights_from,
)
from utils import weights
from utils.convert import cached_in_child
from utils.models import llm
from utils.models.llm import COMPRESSIONS, MODEL_XML

QWEN_VOCABULARY = 151_936  # tokens

# Values of MODEL. checkpoint: in checkpoints.toml. group_size: of its INT4 weights. ram_gb: memory for its export.
MODELS = {
    "tiny": {"checkpoint": "smollm2", "group_size": 64, "ram_gb": 3},
    "released": {"checkpoint": "qwen2_5_1_5b", "group_size": 128, "ram_gb": 12},
    "released-gptq": {"checkpoint": "qwen1_5_7b_gptq", "group_size": 128, "ram_gb": 36},
}


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of a model, or of the checkpoint at CHECKPOINT.

    A GGUF file or a GPTQ checkpoint is converted once.
    """
    name = MODELS[model]["checkpoint"]
    path = weights.resolve(name)
    if _is_gptq(path):
        return cached_in_child(f"{name}-transformers", dequantize_gptq, path, checkpoint=path)
    return llm.transformers_folder(name, path)


def prepare(model: str = "tiny", precision: str = "FP16") -> Path:
    """The IR folder of a model at FP16 or one of COMPRESSIONS. It is converted once and cached.

    Raises ValueError for an unknown name, preflight.NotEnough where memory or disk is too small.
    """
    if model not in MODELS or precision not in {"FP16", *COMPRESSIONS}:
        raise ValueError(
            f"There is no {precision} of {model!r}. Models: {', '.join(MODELS)}; "
            f"precisions: FP16, {', '.join(COMPRESSIONS)}."
        )
    settings = MODELS[model]
    return llm.ir_folder(
        settings["checkpoint"],
        checkpoint_folder(model),
        precision,
        group_size=settings["group_size"],
        ram_gb=settings["ram_gb"],
    )


def better_weights(model: str, target: ov.Model, donor: Path | None = None) -> dict[str, Int4Weight]:
    """Better 4-bit weights than those of `target`, for InsertWeights.

    They are the arrays of a GPTQ checkpoint, or else those of `donor`, an IR folder that was compressed with NNCF's
    scale estimation (by default the one of `prepare`).
    """
    path = weights.resolve(MODELS[model]["checkpoint"])
    if _is_gptq(path):
        return read_gptq(path)
    donor = donor or prepare(model, "INT4 scale estimation")
    return weights_from(ov.Core().read_model(donor / MODEL_XML), target)


def graphs() -> dict[str, Callable[[], ov.Model]]:
    """What `make arm` runs: the FP16 model of `tiny` with three changes."""

    def changed() -> ov.Model:
        model = ov.Core().read_model(prepare() / MODEL_XML)
        customize(model, [InsertSlice(), ExposeHiddenState(), SelectGreedy()])
        return model

    return {"slice, hidden state, token ids": changed}


def prepare_wide(model: str = "tiny") -> Path:
    """The FP16 IR with a random output layer of the size of Qwen's vocabulary, for measuring speed only."""
    base = prepare(model, "FP16")
    name, arguments = f"{MODELS[model]['checkpoint']}-wide", {"vocabulary": QWEN_VOCABULARY}
    return cached_in_child(name, widen_head, base, checkpoint=base, arguments=arguments)


def widen_head(ir: Path, folder: Path) -> None:
    """Replace the output layer of an IR by a seeded random one of the size of Qwen's vocabulary."""
    model = ov.Core().read_model(ir / MODEL_XML)
    head = next(n for n in model.get_ops() if n.get_type_name() == "MatMul" and is_head(n.output(0)))
    hidden = head.input_value(0).get_partial_shape()[2].get_length()
    matrix = np.random.default_rng(0).standard_normal((QWEN_VOCABULARY, hidden), np.float32) * 0.02
    weight = ops.convert(ops.constant(matrix.astype(np.float16)), "f32")
    wide_head = ops.matmul(head.input_value(0), weight, transpose_a=False, transpose_b=True)
    for port in head.output(0).get_target_inputs():
        port.replace_source_output(wide_head.output(0))
    model.validate_nodes_and_infer_types()
    llm.copy_companions(ir, folder)
    ov.save_model(model, folder / MODEL_XML)


# --- GPTQ checkpoints -----------------------------------------------------------------------------------------


def read_gptq(checkpoint: Path) -> dict[str, Int4Weight]:
    """The 4-bit layers of a GPTQ checkpoint (AutoGPTQ's format), by module path, for `InsertWeights`.

    The file holds for each layer: qweight int32 [I/8, O] with eight inputs in a word, qzeros int32 [G, O/8] with the
    zero points minus one, scales [G, O], g_idx [I]. Raises ValueError for another bit width, and for activation order
    (desc_act), whose groups are not contiguous, as an IR needs them.
    """
    settings = _gptq_settings(checkpoint)
    form = settings.get("checkpoint_format", settings.get("quant_method", "gptq"))
    if form != "gptq":
        raise ValueError(f"{checkpoint} is in the format {form}, which packs other numbers; take a GPTQ checkpoint.")
    if settings.get("bits") != 4:
        raise ValueError(f"{checkpoint} has {settings.get('bits')}-bit weights; an INT4 IR takes 4 bits.")
    tensors = _tensors(checkpoint)
    layers = {}
    for name in sorted(key.removesuffix(".qweight") for key in tensors if key.endswith(".qweight")):
        part = {kind: tensors[f"{name}.{kind}"]().numpy() for kind in ("qweight", "qzeros", "scales")}
        inputs, outputs, groups = part["qweight"].shape[0] * 8, part["qweight"].shape[1], len(part["scales"])
        if (order := tensors.get(f"{name}.g_idx")) is not None:
            if not np.array_equal(order().numpy(), np.arange(inputs) // (inputs // groups)):
                raise ValueError(
                    f"{name} in {checkpoint} was quantised in activation order (desc_act): its groups are not "
                    "contiguous. Take a checkpoint with desc_act=false."
                )
        values = _nibbles(part["qweight"].T, inputs)  # [O, I]
        zero_points = _nibbles(part["qzeros"], outputs).T + 1  # [O, G]
        if zero_points.max() > 15:
            raise ValueError(f"{name} in {checkpoint} has zero points of 16, which 4 bits cannot hold.")
        layers[name] = Int4Weight(values, np.ascontiguousarray(part["scales"].T), np.ascontiguousarray(zero_points))
    if not layers:
        raise ValueError(f"{checkpoint} holds no GPTQ layers (no tensor ends in .qweight).")
    return layers


def dequantize_gptq(checkpoint: Path, folder: Path) -> None:
    """Write a GPTQ checkpoint as an ordinary FP16 transformers folder. It holds one shard in memory at a time."""
    import torch
    from safetensors.torch import save_file

    layers, tensors = read_gptq(checkpoint), _tensors(checkpoint)
    parts = (".qweight", ".qzeros", ".scales", ".g_idx")
    plain = [key for key in tensors if key.rsplit(".", 1)[0] not in layers or not key.endswith(parts)]
    pending = [(key, tensors[key]) for key in plain]
    pending += [(f"{name}.weight", lambda w=w: torch.from_numpy(w.dequantize())) for name, w in layers.items()]
    folder.mkdir(parents=True, exist_ok=True)
    weight_map, shard, size, number = {}, {}, 0, 0
    for i, (key, read) in enumerate(pending):
        shard[key] = read().to(torch.float16).contiguous()
        size += shard[key].nbytes
        if size > 2e9 or i == len(pending) - 1:
            number += 1
            weight_map |= dict.fromkeys(shard, f"model-{number:05d}.safetensors")
            save_file(shard, folder / f"model-{number:05d}.safetensors", metadata={"format": "pt"})
            shard, size = {}, 0
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    for file in checkpoint.iterdir():
        if file.is_file() and file.suffix in (".json", ".txt", ".jinja") and "safetensors" not in file.name:
            shutil.copy2(file, folder)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _is_gptq(path: Path) -> bool:
    config = path / "config.json"
    return config.exists() and "quantization_config" in json.loads(config.read_text(encoding="utf-8"))


def _gptq_settings(checkpoint: Path) -> dict:
    for file, key in (("quantize_config.json", None), ("config.json", "quantization_config")):
        if (checkpoint / file).exists():
            settings = json.loads((checkpoint / file).read_text(encoding="utf-8"))
            if settings := (settings.get(key) if key else settings):
                return settings
    raise ValueError(f"{checkpoint} is not a GPTQ checkpoint: it has no quantization_config.")


def _tensors(checkpoint: Path) -> dict:
    """Name -> function that reads the tensor, over all safetensors files of a folder."""
    from safetensors import safe_open

    readers = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        handle = safe_open(file, framework="pt")
        readers |= {key: lambda handle=handle, key=key: handle.get_tensor(key) for key in handle.keys()}
    return readers


def _nibbles(words: np.ndarray, count: int) -> np.ndarray:
    """int32 [..., n] with eight 4-bit numbers each, the lowest first -> uint8 [..., count]."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    numbers = np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts & 15
    return numbers.astype(np.uint8).reshape(*words.shape[:-1], -1)[..., :count]
