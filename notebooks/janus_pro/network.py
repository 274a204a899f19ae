"""Janus-Pro checkpoints into transformers' `JanusForConditionalGeneration`, and what that class leaves out.

Chen et al., "Janus-Pro: Unified Multimodal Understanding and Generation with Data and Model Scaling", 2025: a SigLIP
tower shows pictures to a Llama, which answers in words; and it draws, one token of a VQ autoencoder after another.
Files of the authors (`pytorch_model.bin`) have other names for the same weights than those that transformers writes.
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

from utils.models.tensors import faults, read_json, save_half, shards

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
AUTOENCODERS = {
    "VQ-16": {
        "embed_dim": 8,
        "num_embeddings": 16384,
        "latent_channels": 256,
        "base_channels": 128,
        "channel_multiplier": [1, 1, 2, 2, 4],
    }
}
RENAMED = (  # what in the authors' names becomes what, one after the other
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^language_model\.model\.", "model.language_model."),
    (r"^vision_model\.vision_tower\.", "model.vision_model."),
    (r"^(model\.vision_model)\.patch_embed\.proj\.", r"\1.embeddings.patch_embedding."),
    (r"^(model\.vision_model)\.pos_embed$", r"\1.embeddings.position_embedding.weight"),
    (r"^(model\.vision_model)\.norm\.", r"\1.post_layernorm."),
    (r"^(model\.vision_model)\.blocks\.(\d+)\.", r"\1.encoder.layers.\2."),
    (r"^(model\.vision_model\..*)\.norm([12])\.", r"\1.layer_norm\2."),
    (r"^(model\.vision_model\..*)\.attn\.proj\.", r"\1.self_attn.projection_layer."),
    (r"^(model\.vision_model\..*)\.attn\.qkv\.", r"\1.self_attn.qkv_proj."),  # three in one: see `named`
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
# What a file may hold although the network has no such weights: SigLIP's pooling, a counter of training, formulas.
UNUSED = re.compile(r"model\.vision_model\.attn_pool\..*|model\.vqmodel\.quantize\.codebook_used|.*\.inv_freq")


def renamed(key: str) -> str:
    """transformers' name of a weight that may have the authors' one."""
    for pattern, name in RENAMED:
        key = re.sub(pattern, name, key)
    return key


def configuration(folder: str | Path) -> JanusConfig:
    """The configuration of a checkpoint folder, of the authors or of transformers.

    Raises ValueError for a config.json that is missing, damaged, or not one of Janus.
    """
    path = Path(folder) / "config.json"
    given = read_json(path, NAME)
    try:
        if given["model_type"] == "janus":
            return JanusConfig(**given)
        if given["model_type"] == "multi_modality":
            return _of_the_authors(given)
    except Exception as error:  # transformers raises all kinds
        raise ValueError(f"{path} does not describe a Janus-Pro model: {error!r}.") from error
    raise ValueError(f"{path} describes a model of the type {given['model_type']!r}, not Janus.")


def _of_the_authors(given: dict) -> JanusConfig:
    """Their config.json names the tower and the autoencoder, and leaves out what is Llama's default."""
    text = LlamaConfig(**{key: x for key, x in given["language_config"].items() if not key.startswith("_")})
    width = {"projection_dim": text.hidden_size}
    vision = TOWERS[given["vision_config"]["params"]["model_name"]]
    picture = AUTOENCODERS[given["gen_vision_config"]["cls"]]
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
        return fill(model, _found(model, folder), parts, dtype)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder} holds a file that cannot be read whole: {error}. Fetch it again.") from error


class Stored(NamedTuple):
    """A tensor that is somewhere else, such as in a file."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def named(key: str, shape: tuple[int, ...], read: Callable[[], Tensor]) -> dict[str, Stored]:
    """A checkpoint's tensor under transformers' names.

    The authors keep query, key and value of their tower in one tensor, and its places as a batch of 1.
    """
    name = renamed(key)
    if ".qkv_proj." in name:
        third = shape[0] // 3, *shape[1:]
        return {
            name.replace(".qkv_", f".{kind}_"): Stored(third, lambda i=i: read().chunk(3)[i])
            for i, kind in enumerate("qkv")
        }
    if key.endswith(".pos_embed"):
        return {name: Stored(shape[1:], lambda: read()[0])}
    return {name: Stored(shape, read)}


def fill(
    model: JanusForConditionalGeneration, stored: dict[str, Stored], parts: Iterable[str], dtype: torch.dtype | None
) -> JanusForConditionalGeneration:
    """Give some PARTS of a network on the meta device their weights; returns it, ready for inference."""
    for part in parts:
        module = model.get_submodule(part)
        tensors = {key: stored[f"{part}.{key}"].read() for key in module.state_dict()}
        module.load_state_dict({key: x.to(dtype or x.dtype) for key, x in tensors.items()}, assign=True)
    tower, text = model.model.vision_model, model.model.language_model  # formulas are there even without weights
    tower.embeddings.position_ids = torch.arange(tower.embeddings.num_positions)[None]
    text.rotary_emb = type(text.rotary_emb)(text.config)
    return model.eval()


def encode_pictures(model: JanusForConditionalGeneration, pixels: Tensor) -> Tensor:
    """Pictures [N, 3, H, W] in -1..1 as the tokens [N, T] that `decode_image_tokens` makes pictures of.

    The nearest code is that of the smallest angle, as in training; transformers' own `encode` compares lengths too.
    """
    vq = model.model.vqmodel
    latent = F.normalize(vq.quant_conv(vq.encoder(pixels)).flatten(2).transpose(1, 2), dim=-1)
    return (latent @ F.normalize(vq.quantize.embedding.weight, dim=-1).T).argmax(-1)


def save_tiny(folder: str | Path, model: JanusForConditionalGeneration) -> Path:
    """Write the network as FP16 model.safetensors and its config.json, as `load` reads them; returns the folder.

    Files that are there are replaced once both are written. Raises ValueError, and changes nothing, when a weight is
    not finite in FP16.
    """
    config = json.dumps(model.config.to_dict(), indent=1) + "\n"
    return save_half(folder, {FILES[0]: model.state_dict()}, {"config.json": config})


def _stored(folder: Path) -> dict[str, Stored]:
    """All tensors of a checkpoint under transformers' names."""
    for name in FILES:
        if not any((folder / file).is_file() for file in (name, f"{name}.index.json")):
            continue
        stored = {}
        for path in shards(folder, name, NAME):
            stored |= _of_safetensors(path) if path.suffix == ".safetensors" else _of_torch(path)
        return stored
    raise ValueError(f"{folder} has neither {' nor '.join(FILES)}. Name the folder of a Janus-Pro checkpoint.")


def _of_safetensors(path: Path) -> dict[str, Stored]:
    def reader(key: str) -> Callable[[], Tensor]:
        def read() -> Tensor:  # mapped anew for each, so that what is copied stays in memory only once
            with safe_open(path, "pt") as file:
                return file.get_tensor(key)

        return read

    found = {}
    with safe_open(path, "pt") as file:
        for key in file.keys():
            found |= named(key, tuple(file.get_slice(key).get_shape()), reader(key))
    return found


def _of_torch(path: Path) -> dict[str, Stored]:
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        found = {}
        for key, x in tensors.items():
            found |= named(key, tuple(x.shape), lambda x=x: x)
    except OSError:
        raise
    except Exception as error:  # a damaged file makes the restricted unpickler raise all kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is not a checkpoint of plain tensors ({reason}). Fetch it again.") from error
    return found


def _found(model: JanusForConditionalGeneration, folder: Path) -> dict[str, Stored]:
    """Where the network's tensors are; ValueError unless all are there, and no others."""
    own, stored = {key: tuple(x.shape) for key, x in model.state_dict().items()}, _stored(folder)
    if told := faults(own, {key: x.shape for key, x in stored.items()}, unused=UNUSED):
        raise ValueError(f"{folder} is no Janus-Pro of the sizes in its config.json. Tensors {told}.")
    return stored
