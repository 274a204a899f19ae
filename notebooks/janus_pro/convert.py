"""Janus-Pro checkpoints to OpenVINO IR, one function per sub-model, and the weights to INT8 or INT4.

Answering and drawing share one language model, which maps embeddings to hidden states. Its embeddings and heads are
graphs of their own. `prepare` converts in a separate process and caches the folder: the weights are mapped from their
files and never copied as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import torch
from torch import Tensor, nn
from transformers import JanusForConditionalGeneration

from notebooks.janus_pro.network import PADDING, answer_separator, configuration, guidance, load, system_prompt
from notebooks.janus_pro.pipeline import IMAGE_TOKENS
from utils.models import parts, tracing
from utils.models.parts import xml

# MODEL: checkpoint (checkpoints.toml), group size of its INT4, memory that its conversion takes, and the notebook
MODELS = {
    "tiny": {"checkpoint": "janus_pro_tiny", "group_size": 64, "ram_gb": 2, "notebook_gb": 4},
    "released": {"checkpoint": "janus_pro_1b", "group_size": 128, "ram_gb": 7, "notebook_gb": 18},
    "released-7b": {"checkpoint": "janus_pro_7b", "group_size": 128, "ram_gb": 20, "notebook_gb": 50},
}


def convert_vision(model: JanusForConditionalGeneration) -> ov.Model:
    """The SigLIP tower: `pixel_values` [N, 3, S, S] in -1..1 to `last_hidden_state` [N, T, C]."""
    tower = model.model.vision_model
    size = tower.config.image_size
    forward = _Forward(tower, lambda tower, pixels: tower(pixels).last_hidden_state)
    example = {"pixel_values": torch.zeros(2, 3, size, size)}
    return tracing.trace(forward, example, [[-1, 3, size, size]], ["last_hidden_state"])


def convert_aligner(model: JanusForConditionalGeneration) -> ov.Model:
    """The aligner: the tower's `last_hidden_state` [N, T, C] to embeddings `inputs_embeds` [N, T, D]."""
    width = model.model.aligner.fc1.in_features
    example = {"last_hidden_state": torch.zeros(2, 3, width)}
    return tracing.trace(model.model.aligner, example, [[-1, -1, width]], ["inputs_embeds"])


def convert_text_embeddings(model: JanusForConditionalGeneration) -> ov.Model:
    """The embeddings of text tokens: `input` [B, T] int64 to `inputs_embeds` [B, T, D]."""
    example = {"input": torch.zeros(1, 2, dtype=torch.int64)}
    return tracing.trace(model.get_input_embeddings(), example, [[-1, -1]], ["inputs_embeds"])


def convert_generation_embeddings(model: JanusForConditionalGeneration) -> ov.Model:
    """The embeddings of image tokens: `input` [B, T] int64 to `inputs_embeds` [B, T, D]."""
    network = nn.Sequential(model.model.generation_embeddings, model.model.generation_aligner)
    example = {"input": torch.zeros(1, 2, dtype=torch.int64)}
    return tracing.trace(network, example, [[-1, -1]], ["inputs_embeds"])


def convert_language_model(model: JanusForConditionalGeneration) -> ov.Model:
    """The language model without a head, its KV cache inside it as state.

    Inputs `inputs_embeds` [B, T, D], `attention_mask` [B, cached + T] int64, `position_ids` [B, T] int64, `beam_idx`
    [B] int32 (which row of the cache each row goes on from); output `last_hidden_state` [B, T, D].
    """
    return tracing.stateful_language_model(model.model.language_model, nn.Identity(), "last_hidden_state")


def convert_text_head(model: JanusForConditionalGeneration) -> ov.Model:
    """The head for text tokens: `hidden` [B, D] to `logits` [B, vocabulary]."""
    return _head(model, model.lm_head)


def convert_image_head(model: JanusForConditionalGeneration) -> ov.Model:
    """The head for image tokens: `hidden` [B, D] to `logits` [B, codes]."""
    return _head(model, model.model.generation_head)


def convert_image_decoder(model: JanusForConditionalGeneration) -> ov.Model:
    """The decoder of the VQ autoencoder: `tokens` [N, T] int64, row by row, to `pixels` [N, 3, S, S] in about -1..1."""
    vq = model.model.vqmodel
    count = vq.quantize.quant_state_dims[0] * vq.quantize.quant_state_dims[1]
    example = {"tokens": torch.zeros(2, count, dtype=torch.int64)}
    return tracing.trace(_Forward(vq, lambda vq, tokens: vq.decode(tokens)), example, [[-1, count]], ["pixels"])


CONVERSIONS = {  # sub-model: the parts of the network that it needs, its function
    "vision": (["model.vision_model"], convert_vision),
    "aligner": (["model.aligner"], convert_aligner),
    "text_embeddings": (["model.language_model"], convert_text_embeddings),
    "language": (["model.language_model"], convert_language_model),
    "text_head": (["lm_head"], convert_text_head),
    "image_head": (["model.generation_head"], convert_image_head),
    "generation_embeddings": (
        ["model.generation_embeddings", "model.generation_aligner"],
        convert_generation_embeddings,
    ),
    "image_decoder": (["model.vqmodel"], convert_image_decoder),
}


def to_ir(checkpoint: Path, folder: Path) -> None:
    """Write the IR folder of a checkpoint: sub-models with their weights as stored, tokenizers, settings."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_companions(checkpoint, folder)
    for part, (needed, convert) in CONVERSIONS.items():
        print(f"Converting {part} ...", flush=True)
        model = load(checkpoint, needed)  # the others stay on disk
        half = part == "image_decoder"  # its convolutions are traced in FP32; for the others see tracing.trace
        ov.save_model(convert(model), folder / xml(part), compress_to_fp16=half)
        del model


def compress(ir: Path, precision: str, group_size: int, folder: Path) -> None:
    """Write the IR folder `ir` with compressed weights: INT8, or INT4 in groups for the language model and INT8 else.

    The decoder of pictures is not compressed: it is small, and convolutions are no faster with weights of 8 bits.
    Raises ValueError for another precision.
    """
    compressed = [part for part in CONVERSIONS if part != "image_decoder"]
    int4 = {"group_size": group_size, "all_layers": True}  # without it NNCF takes the last layer for a head
    parts.compress(ir, precision, folder, compressed, int4)


def prepare(model: str = "tiny", precision: str = "FP16") -> Path:
    """The IR folder of a model at one of PRECISIONS, converted once and cached. CHECKPOINT names another checkpoint.

    Raises ValueError for unknown names, preflight.NotEnough for too little memory or disk.
    """
    return parts.prepare("janus-pro", MODELS, model, precision, to_ir, compress)


# --- the details ------------------------------------------------------------------------------------------------


class _Forward(nn.Module):
    """A network with another forward than its own: `call(network, x)`."""

    def __init__(self, network: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.call = network, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.network, x)


def _head(model: JanusForConditionalGeneration, head: nn.Module) -> ov.Model:
    width = model.config.text_config.hidden_size
    return tracing.trace(head, {"hidden": torch.zeros(2, width)}, [[-1, width]], ["logits"])


def _write_companions(checkpoint: Path, folder: Path) -> None:
    """Write tokenizer IRs, and janus.json with the settings that `pipeline.py` reads."""
    from openvino_tokenizers import convert_tokenizer
    from transformers import PreTrainedTokenizerFast

    if not (checkpoint / "tokenizer.json").is_file():
        raise ValueError(f"{checkpoint} has no tokenizer.json. Fetch the whole checkpoint, or correct the path.")
    config = configuration(checkpoint)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    vocabulary = tokenizer.get_vocab()
    padding = tokenizer.pad_token or PADDING
    special = {"bos": tokenizer.bos_token, "eos": tokenizer.eos_token, "padding": padding}
    special |= dict(zip(("placeholder", "begin_of_image", "end_of_image"), IMAGE_TOKENS, strict=True))
    if missing := [token or name for name, token in special.items() if token not in vocabulary]:
        raise ValueError(f"The tokenizer of {checkpoint} lacks {', '.join(missing)}. Fetch the whole checkpoint.")
    tokenizer.save_pretrained(folder)
    for model, name in zip(convert_tokenizer(tokenizer, with_detokenizer=True), ("", "de"), strict=True):
        ov.save_model(model, folder / f"openvino_{name}tokenizer.xml")
    settings = {
        "image_size": config.vision_config.image_size,
        "rows": config.vq_config.num_patches,  # of a picture's tokens, and columns
        "context": config.text_config.max_position_embeddings,
        "system_prompt": system_prompt(checkpoint),
        "guidance": guidance(checkpoint),
        "answer_separator": answer_separator(checkpoint),
        "tokens": {name: vocabulary[token] for name, token in special.items()},
    }
    (folder / "janus.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
