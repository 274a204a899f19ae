"""Janus-Pro checkpoints are loaded into transformers' `JanusForConditionalGeneration`, and saved from it.

Chen et al., "Janus-Pro: Unified Multimodal Understanding and Generation with Data and Model Scaling", 2025. A SigLIP
tower encodes pictures for a Llama, which answers in words. The same Llama draws, one token of a VQ autoencoder after
another. The authors' files (`pytorch_model.bin`) name the weights differently from those that transformers writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    JanusConfig,
    JanusForConditionalGeneration,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
)
from transformers.models.janus.processing_janus import DEFAULT_SYSTEM_PROMPT

from utils.models.tensors import read_json, save_half, shards, tensor_mismatches

PARTS = (
    "model.vision_model",
    "model.aligner",
    "model.vqmodel",
    "model.generation_embeddings",
    "model.generation_aligner",
    "model.generation_head",
    "model.language_model",
    "lm_head",
)
NAME = "Janus-Pro"  # in messages
PADDING = "<｜▁pad▁｜>"  # the padding token where the tokenizer names none
DEFAULT_GUIDANCE = 5.0  # of the authors' program
FILES = ("model.safetensors", "pytorch_model.bin")  # or the index of several such files
TOWERS = {  # by the names that the authors' config.json has for them
    "siglip_large_patch16_384": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 16,
    }
}
AUTOENCODERS = {  # by the names that the authors' config.json has for them
    "VQ-16": {
        "embed_dim": 8,
        "num_embeddings": 16384,
        "latent_channels": 256,
        "base_channels": 128,
        "channel_multiplier": [1, 1, 2, 2, 4],
    }
}
RENAMES = (  # from the authors' names to those of transformers, applied one after the other
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^language_model\.model\.", "model.language_model."),
    (r"^vision_model\.vision_tower\.", "model.vision_model."),
    (r"^(model\.vision_model)\.patch_embed\.proj\.", r"\1.embeddings.patch_embedding."),
    (r"^(model\.vision_model)\.pos_embed$", r"\1.embeddings.position_embedding.weight"),
    (r"^(model\.vision_model)\.norm\.", r"\1.post_layernorm."),
    (r"^(model\.vision_model)\.blocks\.(\d+)\.", r"\1.encoder.layers.\2."),
    (r"^(model\.vision_model\..*)\.norm([12])\.", r"\1.layer_norm\2."),
    (r"^(model\.vision_model\..*)\.attn\.proj\.", r"\1.self_attn.projection_layer."),
    (
        r"^(model\.vision_model\..*)\.attn\.qkv\.",
        r"\1.self_attn.qkv_proj.",
    ),  # q, k and v: see `canonical_tensors`
    (r"^aligner\.", "model.aligner."),
    (r"^gen_aligner\.", "model.generation_aligner."),
    (r"^(model\.(?:generation_)?aligner)\.layers\.0\.", r"\1.fc1."),
    (r"^(model\.(?:generation_)?aligner)\.layers\.2\.", r"\1.hidden_layers.0."),
    (r"^gen_embed\.", "model.generation_embeddings."),
    (r"^gen_head\.output_mlp_projector\.", "model.generation_head.proj_out."),
    (r"^gen_head\.", "model.generation_head."),
    (r"^gen_vision_model\.", "model.vqmodel."),
    (r"^(model\.vqmodel\.encoder)\.conv_blocks\.", r"\1.down."),
    (r"^(model\.vqmodel\.decoder)\.conv_blocks\.", r"\1.up."),
    (r"^(model\.vqmodel\..*)\.res\.", r"\1.block."),
    (r"^(model\.vqmodel\..*\.mid)\.0\.", r"\1.block_1."),
    (r"^(model\.vqmodel\..*\.mid)\.1\.", r"\1.attn_1."),
    (r"^(model\.vqmodel\..*\.mid)\.2\.", r"\1.block_2."),
)
# Tensors of a file that the network does not have: SigLIP's pooling, a counter of training, constants.
UNUSED = re.compile(r"model\.vision_model\.attn_pool\..*|model\.vqmodel\.quantize\.codebook_used|.*\.inv_freq")


def canonical_name(key: str) -> str:
    """transformers' name of a weight; key: that name, or the one of the authors."""
    for pattern, name in RENAMES:
        key = re.sub(pattern, name, key)
    return key


def configuration(folder: str | Path) -> JanusConfig:
    """The configuration of a checkpoint folder, of the authors or of transformers.

    Raises ValueError for a config.json that is missing, damaged, or not one of Janus.
    """
    path = Path(folder) / "config.json"
    config = read_json(path, NAME)
    try:
        if config["model_type"] == "janus":
            return JanusConfig(**config)
        if config["model_type"] == "multi_modality":
            return _from_authors_config(config)
    except Exception as error:  # transformers raises all kinds
        raise ValueError(f"{path} does not describe a Janus-Pro model: {error!r}.") from error
    raise ValueError(f"{path} describes a model of the type {config['model_type']!r}, not Janus.")


def _from_authors_config(config: dict) -> JanusConfig:
    """The authors' config.json names the tower and the autoencoder, and leaves out Llama's default values."""
    text = LlamaConfig(**{key: x for key, x in config["language_config"].items() if not key.startswith("_")})
    width = {"projection_dim": text.hidden_size}
    vision = TOWERS[config["vision_config"]["params"]["model_name"]]
    picture = AUTOENCODERS[config["gen_vision_config"]["cls"]]
    return JanusConfig(
        text_config=text,
        vision_config=JanusVisionConfig(**vision, **width),
        vq_config=JanusVQVAEConfig(**picture, **width, image_token_embed_dim=text.hidden_size),
    )


def load(
    folder: str | Path, parts: Iterable[str] = PARTS, dtype: torch.dtype | None = None
) -> JanusForConditionalGeneration:
    """The network that a checkpoint folder holds, ready for inference.

    folder: config.json and weights, one file of FILES or several with their index, named by the authors or by
    transformers. parts: which of PARTS to read; the others stay without weights (on the meta device). dtype: of the
    weights; None leaves them as they are stored and mapped into memory, so that only what is used is read. Raises
    ValueError when a file is missing or damaged, or the files hold other tensors than the network has (listed).
    """
    folder = Path(folder)
    config = configuration(folder)
    with torch.device("meta"):
        model = JanusForConditionalGeneration(config)
    try:
        return load_weights(model, _located_tensors(model, folder), parts, dtype)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder} holds a file that cannot be read whole: {error}. Fetch it again.") from error


class StoredTensor(NamedTuple):
    """A tensor that is not in memory yet, such as one in a file."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def canonical_tensors(key: str, shape: tuple[int, ...], read: Callable[[], Tensor]) -> dict[str, StoredTensor]:
    """A checkpoint's tensor under transformers' names.

    The authors store query, key and value of their tower in one tensor, and its position embeddings as a batch of 1.
    """
    name = canonical_name(key)
    if ".qkv_proj." in name:
        third = shape[0] // 3, *shape[1:]
        return {
            name.replace(".qkv_", f".{kind}_"): StoredTensor(third, lambda i=i: read().chunk(3)[i])
            for i, kind in enumerate("qkv")
        }
    if key.endswith(".pos_embed"):
        return {name: StoredTensor(shape[1:], lambda: read()[0])}
    return {name: StoredTensor(shape, read)}


def load_weights(
    model: JanusForConditionalGeneration,
    stored: dict[str, StoredTensor],
    parts: Iterable[str],
    dtype: torch.dtype | None,
) -> JanusForConditionalGeneration:
    """Load the weights of some PARTS of a network on the meta device; returns the network, ready for inference."""
    for part in parts:
        module = model.get_submodule(part)
        tensors = {key: stored[f"{part}.{key}"].read() for key in module.state_dict()}
        module.load_state_dict({key: x.to(dtype or x.dtype) for key, x in tensors.items()}, assign=True)
    # position ids and rotary frequencies are computed: they are needed even on the meta device
    tower, text = model.model.vision_model, model.model.language_model
    tower.embeddings.position_ids = torch.arange(tower.embeddings.num_positions)[None]
    text.rotary_emb = type(text.rotary_emb)(text.config)
    return model.eval()


def encode_pictures(model: JanusForConditionalGeneration, pixels: Tensor) -> Tensor:
    """Pictures [N, 3, H, W] in -1..1 as tokens [N, T], which `decode_image_tokens` decodes to pictures again.

    The nearest code is that of the smallest angle, as in training; transformers' own `encode` compares lengths too.
    """
    vq = model.model.vqmodel
    latents = vq.quant_conv(vq.encoder(pixels)).flatten(2).transpose(1, 2)  # [N, T, C]
    latents = F.normalize(latents, dim=-1)
    cosines = latents @ F.normalize(vq.quantize.embedding.weight, dim=-1).T  # [N, T, codes]
    return cosines.argmax(-1)


def system_prompt(checkpoint: Path) -> str:
    """The text that a checkpoint reads before every question."""
    return _settings(checkpoint, "processor_config.json").get("system_prompt", DEFAULT_SYSTEM_PROMPT)


def answer_separator(checkpoint: Path) -> str:
    """What a checkpoint writes between its reasoning and its answer; empty unless it reasons first."""
    return _settings(checkpoint, "processor_config.json").get("answer_separator", "")


def guidance(checkpoint: Path) -> float:
    """The default scale of guidance for a checkpoint's drawings."""
    return float(_settings(checkpoint, "generation_config.json").get("guidance_scale") or DEFAULT_GUIDANCE)


def _settings(checkpoint: Path, name: str) -> dict:
    """The content of a checkpoint's configuration file, empty if it does not have that one."""
    file = checkpoint / name
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def save_tiny(folder: str | Path, model: JanusForConditionalGeneration) -> Path:
    """Write the network as FP16 model.safetensors and its config.json, as `load` reads them; returns the folder.

    Files that are there are replaced once both are written. Raises ValueError, and changes nothing, when a weight is
    not finite in FP16.
    """
    config = json.dumps(model.config.to_dict(), indent=1) + "\n"
    return save_half(folder, {FILES[0]: model.state_dict()}, {"config.json": config})


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint under transformers' names."""
    for name in FILES:
        if not any((folder / file).is_file() for file in (name, f"{name}.index.json")):
            continue
        stored = {}
        for path in shards(folder, name, NAME):
            stored |= _from_safetensors(path) if path.suffix == ".safetensors" else _from_torch(path)
        return stored
    raise ValueError(f"{folder} has neither {' nor '.join(FILES)}. Name the folder of a Janus-Pro checkpoint.")


def _from_safetensors(path: Path) -> dict[str, StoredTensor]:
    def reader(key: str) -> Callable[[], Tensor]:
        def read() -> Tensor:  # maps the file for each tensor, so that a copy is not in memory twice
            with safe_open(path, "pt") as file:
                return file.get_tensor(key)

        return read

    stored = {}
    with safe_open(path, "pt") as file:
        for key in file.keys():
            stored |= canonical_tensors(key, tuple(file.get_slice(key).get_shape()), reader(key))
    return stored


def _from_torch(path: Path) -> dict[str, StoredTensor]:
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        stored = {}
        for key, x in tensors.items():
            stored |= canonical_tensors(key, tuple(x.shape), lambda x=x: x)
    except OSError:
        raise
    except Exception as error:  # a damaged file makes the restricted unpickler raise all kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is not a checkpoint of plain tensors ({reason}). Fetch it again.") from error
    return stored


def _located_tensors(model: JanusForConditionalGeneration, folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint; ValueError unless they are those of the network, and no others."""
    expected = {key: tuple(x.shape) for key, x in model.state_dict().items()}
    stored = _stored_tensors(folder)
    if mismatches := tensor_mismatches(expected, {key: x.shape for key, x in stored.items()}, unused=UNUSED):
        raise ValueError(f"{folder} is no Janus-Pro of the sizes in its config.json. Tensors {mismatches}.")
    return stored
