"""PyTorch to OpenVINO: graphs that keep 16-bit weights, and language models with their KV cache as state."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino._offline_transformations import compress_model_transformation
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer


def trace(network: nn.Module, example: dict[str, Tensor], shapes: list, outputs: list[str]) -> ov.Model:
    """Trace a network to an OpenVINO model with named inputs and outputs.

    shapes: of the inputs, -1 for a dynamic axis. Large 16-bit weights become constants of the IR without conversion.
    All other constants are FP32. Save the model without compression to FP16: rounded position frequencies would be off
    by whole angles in long conversations.
    """
    from openvino.frontend.pytorch import patch_model

    marker = "_openvino_module_extension_patch_orig_forward"
    network.eval().requires_grad_(False)
    if half := any(p.dtype in (torch.float16, torch.bfloat16) for p in network.parameters()):
        getattr(patch_model, "__make_16bit_traceable")(network, marker)
    try:
        inputs = [ov.PartialShape(shape) for shape in shapes]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # parity tests check what it warns of
            model = ov.convert_model(network, example_input=tuple(example.values()), input=inputs)
    finally:
        if half:
            patch_model.unpatch_model(network, marker)
    for port, name in zip([*model.inputs, *model.outputs], [*example, *outputs], strict=True):
        port.get_tensor().set_names({name})
    return model


def save(model: ov.Model, path: Path) -> None:
    """Write a model: constants that are exact in FP16 as FP16, such as weights of 16 bits, all others as FP32.

    Compressing all constants would also round those that tracing derived: windows, positions, folded weights.
    """
    rounded = {}  # by name
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() == ov.Type.f32:
            with np.errstate(over="ignore"):
                exact = (node.data == node.data.astype(np.float16)).all()
            if not exact:
                rounded[node.get_friendly_name()] = node.data.copy()
    model = model.clone()
    compress_model_transformation(model)
    for node in model.get_ops():  # a compressed constant gives its name to the node that decompresses it
        if node.get_type_name() == "Convert" and node.get_friendly_name() in rounded:
            whole = ops.constant(rounded[node.get_friendly_name()])
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(whole.output(0))
    ov.save_model(model, path, compress_to_fp16=False)


def stateful_language_model(model: nn.Module, head: nn.Module, output: str) -> ov.Model:
    """Trace a decoder of transformers, such as Qwen2Model, with `head` on top and its KV cache as state.

    Inputs: `inputs_embeds` [batch, tokens, hidden], `attention_mask` [batch, cached + tokens] int64, `position_ids`
    [batch, tokens] int64, `beam_idx` [batch] int32, the row of the cache that each row continues. The output `output`
    is `head` of the hidden states [batch, tokens, hidden].
    """
    config = model.config
    hidden, layers, kv_heads = config.hidden_size, config.num_hidden_layers, config.num_key_value_heads
    head_size = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    states = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    past = [f"past_key_values.{state}" for state in states]
    present = [f"present.{state}" for state in states]
    example = {
        "inputs_embeds": torch.zeros(2, 3, hidden),
        "attention_mask": torch.ones(2, 5, dtype=torch.int64),
        "position_ids": torch.arange(2, 5)[None].repeat(2, 1),
    } | {name: torch.zeros(2, kv_heads, 2, head_size) for name in past}
    shapes = [[-1, -1, hidden], [-1, -1], [-1, -1]] + [[-1, kv_heads, -1, head_size]] * len(past)
    traced = trace(_Decoder(model, head), example, shapes, [output, *present])
    return stateful(traced, dict(zip(past, present, strict=True)))


class _Decoder(nn.Module):
    """A language model whose KV cache is inputs and outputs: tensors [batch, kv_heads, cached, head_size]."""

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.model, self.head = model, head

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor) -> tuple:
        total = attention_mask.shape[1]  # cached + tokens
        positions = torch.arange(total)  # [total]
        causal = positions[None] <= positions[total - inputs_embeds.shape[1] :, None]  # [tokens, total]
        visible = causal[None, None] & attention_mask[:, None, None].bool()  # [batch, 1, tokens, total]
        cache = DynamicCache()
        for keys, values in zip(past[::2], past[1::2], strict=True):
            layer = DynamicLayer()  # initialized here: an empty layer would be traced as an empty vector
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            cache.layers.append(layer)
        hidden = self.model(
            inputs_embeds=inputs_embeds,
            attention_mask=additive(visible),
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state  # [batch, tokens, hidden]
        return self.head(hidden), *(states for layer in cache.layers for states in (layer.keys, layer.values))


def additive(visible: Tensor) -> Tensor:
    """The additive form of a boolean attention mask: 0 where it is true, the lowest float32 elsewhere.

    With a boolean mask the CPU takes ten times as long for attention over many tokens.
    """
    return torch.where(visible, 0.0, torch.finfo(torch.float32).min)


def stateful(model: ov.Model, caches: dict[str, str]) -> ov.Model:
    """Turn the caches (input name: output name) into state, whose rows a new input `beam_idx` [batch] selects.

    The CPU plugin fuses attention into one operation only with this Gather and with an initial state of this shape,
    [batch, kv_heads, 0, head_size].
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
