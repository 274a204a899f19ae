"""Does the conversion change anything? Every sub-model in FP32 against PyTorch, on the pieces of a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import torch
from PIL import Image

from notebooks.minicpm_v import convert
from notebooks.minicpm_v.network import MiniCPMV, load
from notebooks.minicpm_v.pipeline import VisionChat
from notebooks.minicpm_v.pipeline.slicing import batch, cut, normalise, sincos_positions
from utils import compare
from utils.models.llm import FP32_PROPERTIES

TOLERANCE = 1e-3
WORDS = 40  # random embeddings that the language model reads


def compare_with_pytorch(checkpoint: Path, folder: Path, picture: Image.Image, device: str = "CPU") -> list[dict]:
    """Parity rows of the vision tower, the resampler, the token embedding and the language model.

    Each gets the same inputs as the network in PyTorch, so that differences do not add up. folder: the checkpoint's IR
    folder. picture: RGB; the pieces that it is cut into are read.
    """
    network = load(checkpoint).float()  # of the weights as they are converted: scaled, then rounded to 16 bits
    plan = VisionChat(folder, device).plan(picture)
    pieces = cut(picture, plan)
    inputs, there = _vision_inputs(network, pieces[1:] or pieces)
    width = network.config["hidden_size"]
    rng = np.random.default_rng(0)
    words = rng.standard_normal((1, WORDS, width)).astype(np.float32)  # [1, T, D]
    ids = rng.integers(0, network.config["vocab_size"], (1, WORDS))  # [1, T]
    with torch.inference_mode():
        features = network.vpm(*map(torch.from_numpy, inputs.values())).numpy()  # [N, L, C]
        positions = _positions(network, pieces[-1], features.shape)  # [L, N, D]
        padding = ~there
        expected = {
            "vision_embeddings": features[there],
            "resampler": network.resampler(*map(torch.from_numpy, (features, positions, padding))),
            "text_embeddings": network.llm.get_input_embeddings()(torch.from_numpy(ids)),
            "language": network.llm(inputs_embeds=torch.from_numpy(words)).logits,
        }
    if "patch_attention_mask" in inputs:
        inputs["patch_attention_mask"] = inputs["patch_attention_mask"][:, None].astype(np.float32)  # [N, 1, L]
    given = {
        "vision_embeddings": inputs,
        "resampler": {
            "image_feature": features,
            "pos_embed": positions,
            "key_padding_mask": padding.astype(np.float32),
        },
        "text_embeddings": {"input": ids},
        "language": {
            "inputs_embeds": words,
            "attention_mask": np.ones((1, WORDS), np.int64),
            "position_ids": np.arange(WORDS)[None],
            "beam_idx": np.zeros(1, np.int32),
        },
    }
    rows = []
    for part, name in (
        ("vision_embeddings", "vision tower"),
        ("resampler", "resampler"),
        ("text_embeddings", "token embedding"),
        ("language", "language model"),
    ):
        compiled = ov.Core().compile_model(folder / convert.xml(part), device, FP32_PROPERTIES)
        ours = compiled.create_infer_request().infer(given[part])[0]
        ours = ours[there] if part == "vision_embeddings" else ours
        rows.append(compare.parity(name, ours, expected[part], TOLERANCE))
    return rows


def _vision_inputs(network: MiniCPMV, pieces: list[Image.Image]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs of the vision tower for pieces of one size, in the order of its arguments in PyTorch, and [N, L] bool:
    where there is a patch."""
    if network.version == 2.6:
        config = network.vpm.config
        inputs = batch(pieces, config.image_size // config.patch_size, config.patch_size)
        names = ("pixel_values", "patch_attention_mask", "position_ids")
        return {name: getattr(inputs, name) for name in names}, inputs.patch_attention_mask
    patch = network.vpm.patch_embed["proj"].kernel_size[0]
    rows, columns = pieces[0].height // patch, pieces[0].width // patch
    pixels = np.stack([normalise(piece) for piece in pieces])  # [N, 3, H, W]
    table = network.vpm.positions(rows, columns).detach().numpy()  # [1, L, C]
    return {"pixel_values": pixels, "pos_embed": table}, np.ones((len(pieces), rows * columns), bool)


def _positions(network: MiniCPMV, piece: Image.Image, shape: tuple[int, ...]) -> np.ndarray:
    """[L, N, D]: the positions of the patches of N equal pieces, for features of `shape` [N, L, C]."""
    patch = round((piece.width * piece.height / shape[1]) ** 0.5)  # the patch's side: L patches fill a piece
    width = network.config["hidden_size"]
    table = sincos_positions(piece.height // patch, piece.width // patch, width).reshape(-1, 1, width)  # [L, 1, D]
    return np.ascontiguousarray(np.broadcast_to(table, (shape[1], shape[0], width)))
