"""PyTorch to OpenVINO: tracing that leaves weights of 16 bits alone, and language models with their cache inside."""

from __future__ import annotations

import warnings

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer


def trace(network: nn.Module, example: dict[str, Tensor], shapes: list, outputs: list[str]) -> ov.Model:
    """Trace to an OpenVINO model with named inputs and outputs.

    Large weights of 16 bits become the IR's constants as they are, without being read. All else is FP32 and to be saved
    so: rounded to FP16, the frequencies of positions would be wrong by whole angles in long conversations.
    """
    from openvino.frontend.pytorch import patch_model

    marker = "_openvino_module_extension_patch_orig_forward"
    network.eval().requires_grad_(False)
    if half := any(p.dtype in (torch.float16, torch.bfloat16) for p in network.parameters()):
        getattr(patch_model, "__make_16bit_traceable")(network, marker)
    try:
        inputs = [ov.PartialShape(shape) for shape in shapes]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # what they fear is what parity is tested for
            model = ov.convert_model(network, example_input=tuple(example.values()), input=inputs)
    finally:
        if half:
            patch_model.unpatch_model(network, marker)
    for port, name in zip([*model.inputs, *model.outputs], [*example, *outputs], strict=True):
        port.get_tensor().set_names({name})
    return model


def stateful_language_model(model: nn.Module, head: nn.Module, output: str) -> ov.Model:
    """A decoder of transformers, such as Qwen2Model, with `head` on top and its KV cache inside it as state.

    Inputs `inputs_embeds` [B, T, D], `attention_mask` [B, cached + T] int64, `position_ids` [B, T] int64, `beam_idx`
    [B] int32 (which row of the cache each row goes on from); output `output`, what the head makes of [B, T, D].
    """
    config = model.config
    width, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_key_value_heads
    size = getattr(config, "head_dim", None) or width // config.num_attention_heads
    states = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    past, present = ([f"{when}.{state}" for state in states] for when in ("past_key_values", "present"))
    example = {
        "inputs_embeds": torch.zeros(2, 3, width),
        "attention_mask": torch.ones(2, 5, dtype=torch.int64),
        "position_ids": torch.arange(2, 5)[None].repeat(2, 1),
    } | {name: torch.zeros(2, heads, 2, size) for name in past}
    shapes = [[-1, -1, width], [-1, -1], [-1, -1]] + [[-1, heads, -1, size]] * len(past)
    traced = trace(_Decoder(model, head), example, shapes, [output, *present])
    return stateful(traced, dict(zip(past, present, strict=True)))


class _Decoder(nn.Module):
    """A language model whose KV cache comes in and goes out as tensors [B, heads, cached, head]."""

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.model, self.head = model, head

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor) -> tuple:
        total = attention_mask.shape[1]
        places = torch.arange(total)
        causal = places[None] <= places[total - inputs_embeds.shape[1] :, None]
        seen = causal[None, None] & attention_mask[:, None, None].bool()
        cache = DynamicCache()
        for keys, values in zip(past[::2], past[1::2], strict=True):
            layer = DynamicLayer()  # filled by hand: a new one would be traced as an empty vector
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            cache.layers.append(layer)
        hidden = self.model(
            inputs_embeds=inputs_embeds,
            attention_mask=additive(seen),
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return self.head(hidden), *(states for layer in cache.layers for states in (layer.keys, layer.values))


def additive(seen: Tensor) -> Tensor:
    """What attention adds to its scores where a mask of booleans lets it look, 0, and where not.

    The CPU takes ten times as long for attention over many tokens with the booleans themselves.
    """
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)


def stateful(model: ov.Model, caches: dict[str, str]) -> ov.Model:
    """Keep the caches (input name: output name) inside the model, rows picked by a new input `beam_idx`.

    The pick and the empty state of the right shape are what the CPU needs to see attention as one operation.
    """
    from openvino._offline_transformations import apply_make_stateful_transformation

    beams = ops.parameter([-1], np.int32, "beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    for name in caches:
        cache = model.input(name)
        readers = cache.get_target_inputs()
        picked = ops.gather(cache, beams, ops.constant(np.int64(0)))
        for reader in readers:
            reader.replace_source_output(picked.output(0))
    model.add_parameters([beams])
    model.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(model, caches)
    sizes = ops.shape_of(model.input("inputs_embeds"), output_type="i64")
    batch = ops.gather(sizes, ops.constant(np.int64([0])), ops.constant(np.int64(0)))
    for operation in model.get_ops():
        if operation.get_type_name() == "ReadValue":
            _, heads, _, head = operation.get_output_partial_shape(0)
            rest = ops.constant(np.int64([heads.get_length(), 0, head.get_length()]))
            shape = ops.concat([batch, rest], 0)
            operation.set_arguments([ops.broadcast(ops.constant(np.float32(0)), shape)])
    model.validate_nodes_and_infer_types()
    return model
