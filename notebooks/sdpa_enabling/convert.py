"""From PyTorch to OpenVINO: the attention layer, and SmolLM2 with attention that is written by hand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import openvino as ov
import torch

from notebooks.sdpa_enabling.network import SPELLINGS, Attention
from notebooks.sdpa_enabling.pipeline import fuse_attention, make_stateful
from utils.convert import cached_in_child
from utils.models import llm, llm_folders

# Values of MODEL. checkpoint: in checkpoints.toml; ram_gb: memory for its export.
MODELS = {"tiny": {"checkpoint": "smollm2", "ram_gb": 4}, "released": {"checkpoint": "qwen2_5_1_5b", "ram_gb": 12}}
CACHE = ("past_keys", "past_values")


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of a model, or of the checkpoint at CHECKPOINT."""
    return llm_folders.checkpoint_folder(MODELS, model)


def prepare(model: str = "tiny", attention: str = "by hand") -> Path:
    """The IR folder of a language model whose attention is written "by hand", or as optimum-intel exports it, "fused".

    Raises ValueError for an unknown name, preflight.NotEnough where memory or disk is too small.
    """
    if model not in MODELS or attention not in ("by hand", "fused"):
        known = f"Models: {', '.join(MODELS)}; attention: by hand, fused."
        raise ValueError(f"There is no model {model!r} with attention {attention!r}. {known}")
    name, checkpoint, ram_gb = MODELS[model]["checkpoint"], checkpoint_folder(model), MODELS[model]["ram_gb"]
    if attention == "fused":
        return llm.ir_folder(name, checkpoint, ram_gb=ram_gb)
    return cached_in_child(f"{name}-by-hand", export_by_hand, checkpoint, checkpoint=checkpoint, ram_gb=ram_gb)


def attention_by_hand(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    """Attention as many repositories write it: a division by sqrt(d), and masked_fill."""
    groups = module.num_key_value_groups
    batch, heads, _, size = key.shape
    key, value = (x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(batch, heads * groups, -1, size)
                  for x in (key, value))  # fmt: skip
    scores = query @ key.transpose(2, 3) / math.sqrt(size)
    scores = scores.masked_fill(attention_mask < 0, torch.finfo(scores.dtype).min)
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


def export_by_hand(checkpoint: Path, folder: Path) -> None:
    """Export a transformers folder with `attention_by_hand` in every layer: a stateful FP16 IR."""
    from optimum.exporters.openvino.convert import export_from_model
    from optimum.intel import OVConfig
    from transformers import AttentionInterface, AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32)
    AttentionInterface.register("eager", attention_by_hand)
    try:
        export_from_model(network, folder, task="text-generation-with-past", ov_config=OVConfig(dtype="fp16"))
    finally:
        del AttentionInterface._global_mapping["eager"]


def to_ir(network: Attention) -> ov.Model:
    """An attention layer with dynamic lengths; its cache is two inputs and two outputs."""
    width, heads, size = network.heads * network.size, network.kv_heads, network.size
    x, past = torch.zeros(2, 5, width), torch.zeros(2, heads, 3, size)
    cache = ov.PartialShape([-1, heads, -1, size])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        shapes = [ov.PartialShape([-1, -1, width]), cache, cache]
        model = ov.convert_model(network.eval(), example_input=(x, past, past.clone()), input=shapes)
    for port, name in zip([*model.inputs, *model.outputs], ["x", *CACHE, "y", "keys", "values"], strict=True):
        port.get_tensor().set_names({name})
    return model


def with_state(attend: str) -> ov.Model:
    """An attention layer in one of SPELLINGS with random weights, after both passes: its cache is state."""
    torch.manual_seed(0)
    model = to_ir(Attention(attend))
    make_stateful(model)
    fuse_attention(model)
    return model


def graphs() -> dict[str, Callable[[], ov.Model]]:
    """What `make arm` runs: an attention layer in each spelling."""
    return {name: partial(with_state, name) for name in SPELLINGS}


def to_onnx(network: Attention, file: Path) -> None:
    """The same layer as an ONNX file."""
    width, heads, size = network.heads * network.size, network.kv_heads, network.size
    x, past = torch.zeros(2, 5, width), torch.zeros(2, heads, 3, size)
    names = ["y", "keys", "values"]
    axes = {"x": {0: "batch", 1: "new"}, **{name: {0: "batch", 2: f"{name} tokens"} for name in (*CACHE, *names[1:])}}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(network.eval(), (x, past, past.clone()), file, input_names=["x", *CACHE], output_names=names,
                          dynamic_axes=axes, dynamo=False)  # fmt: skip
