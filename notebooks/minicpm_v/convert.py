"""MiniCPM-V checkpoints to OpenVINO IR, one function per sub-model, and the weights to INT8 or INT4.

The folder of 2.6 has the layout of `openvino_genai.VLMPipeline`; that of 2.0 has the same files. `prepare` converts in
a separate process and caches the folder: the weights are mapped from their files and never copied as a whole.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from torch import Tensor, nn

from notebooks.minicpm_v.network import MiniCPMV, load
from utils.models import parts, tracing
from utils.models.parts import xml

# MODEL: checkpoint (checkpoints.toml), group size of its INT4, memory that its conversion takes, and the notebook
MODELS = {
    "tiny": {"checkpoint": "minicpm_v_tiny", "group_size": 64, "ram_gb": 2, "notebook_gb": 5},
    "released": {"checkpoint": "minicpm_v_2", "group_size": 128, "ram_gb": 10, "notebook_gb": 16},
    "released-2.6": {"checkpoint": "minicpm_v_2_6", "group_size": 128, "ram_gb": 22, "notebook_gb": 60},
}
POSITIONS = "vision_positions.npy"  # 2.0's table of positions, [27, 27, C] float32
CHAT_2_0 = (  # the conversation format of its authors; 2.6 has its template in tokenizer_config.json
    "{% for message in messages %}{{ '<用户>' if message['role'] == 'user' else '<AI>' }}{{ message['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}<AI>{% endif %}"
)


def convert_vision(model: MiniCPMV) -> ov.Model:
    """The vision tower; output `last_hidden_state` [N, L, C].

    2.6: `pixel_values` [N, 3, P, L * P], `patch_attention_mask` [N, 1, L] float (1: a patch is there), `position_ids`
    [N, L] int64. 2.0: `pixel_values` [N, 3, H, W], `pos_embed` [1, L, C], the table of POSITIONS resized to the grid.
    """
    if model.version == 2.6:
        patch = model.vpm.config.patch_size
        example = {
            "pixel_values": torch.zeros(2, 3, patch, 4 * patch),
            "patch_attention_mask": torch.ones(2, 1, 4),
            "position_ids": torch.zeros(2, 4, dtype=torch.int64),
        }
        shapes = [[-1, 3, patch, -1], [-1, 1, -1], [-1, -1]]
        return tracing.trace(_Vision(model.vpm), example, shapes, ["last_hidden_state"])
    patch, width = model.vpm.patch_embed["proj"].kernel_size[0], model.vpm.pos_embed.shape[-1]
    example = {"pixel_values": torch.zeros(2, 3, 2 * patch, 2 * patch), "pos_embed": torch.zeros(1, 4, width)}
    return tracing.trace(model.vpm, example, [[-1, 3, -1, -1], [1, -1, width]], ["last_hidden_state"])


def convert_resampler(model: MiniCPMV) -> ov.Model:
    """The resampler: `image_feature` [N, L, C], `pos_embed` [L, N, D] and `key_padding_mask` [N, L] float (1: padding)
    to `last_hidden_state` [N, queries, D]."""
    resampler = model.resampler
    inputs = getattr(resampler.kv_proj, "in_features", resampler.width)
    example = {
        "image_feature": torch.zeros(2, 4, inputs),
        "pos_embed": torch.zeros(4, 2, resampler.width),
        "key_padding_mask": torch.zeros(2, 4),
    }
    shapes = [[-1, -1, inputs], [-1, -1, resampler.width], [-1, -1]]
    return tracing.trace(_Resampler(resampler), example, shapes, ["last_hidden_state"])


def convert_text_embeddings(model: MiniCPMV) -> ov.Model:
    """The embeddings of tokens: `input` [B, T] int64 to `inputs_embeds` [B, T, D]."""
    example = {"input": torch.zeros(1, 2, dtype=torch.int64)}
    return tracing.trace(model.llm.get_input_embeddings(), example, [[-1, -1]], ["inputs_embeds"])


def convert_language_model(model: MiniCPMV) -> ov.Model:
    """The language model, its KV cache inside it as state.

    Inputs `inputs_embeds` [B, T, D], `attention_mask` [B, cached + T] int64, `position_ids` [B, T] int64, `beam_idx`
    [B] int32 (which row of the cache each row goes on from); output `logits` [B, T, vocabulary].
    """
    return tracing.stateful_language_model(model.llm.model, model.llm.lm_head, "logits")


CONVERSIONS = {  # sub-model: the part of the network that it needs, its function
    "vision_embeddings": ("vpm", convert_vision),
    "resampler": ("resampler", convert_resampler),
    "text_embeddings": ("llm", convert_text_embeddings),
    "language": ("llm", convert_language_model),
}


def to_ir(checkpoint: Path, folder: Path) -> None:
    """Write the IR folder of a checkpoint: sub-models with their weights as stored, tokenizers, configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_companions(checkpoint, folder)
    for part, (needed, convert) in CONVERSIONS.items():
        model = load(checkpoint, [needed])  # the others stay on disk
        if part == "vision_embeddings" and model.version == 2.0:
            table = model.vpm.pos_embed.detach().float().numpy()
            np.save(folder / POSITIONS, table.reshape(model.vpm.SIDE, model.vpm.SIDE, -1), allow_pickle=False)
        print(f"Converting {part} ...", flush=True)
        ov.save_model(convert(model), folder / xml(part), compress_to_fp16=False)  # see tracing.trace
        del model


def compress(ir: Path, precision: str, group_size: int, folder: Path) -> None:
    """Write the IR folder `ir` with compressed weights: INT8, or INT4 in groups for the language model and INT8 else.

    Raises ValueError for another precision.
    """
    parts.compress(ir, precision, folder, CONVERSIONS, {"group_size": group_size})


def prepare(model: str = "tiny", precision: str = "FP16") -> Path:
    """The IR folder of a model at one of PRECISIONS, converted once and cached. CHECKPOINT names another checkpoint.

    Raises ValueError for unknown names, preflight.NotEnough for too little memory or disk.
    """
    return parts.prepare("minicpm-v", MODELS, model, precision, to_ir, compress)


# --- the details ------------------------------------------------------------------------------------------------


class _Vision(nn.Module):
    """2.6's tower with the mask as floats, as openvino_genai passes it."""

    def __init__(self, vpm: nn.Module) -> None:
        super().__init__()
        self.vpm = vpm

    def forward(self, pixel_values: Tensor, patch_attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        return self.vpm(pixel_values, patch_attention_mask[:, 0] > 0.5, position_ids)


class _Resampler(nn.Module):
    """The resampler with the mask as floats."""

    def __init__(self, resampler: nn.Module) -> None:
        super().__init__()
        self.resampler = resampler

    def forward(self, image_feature: Tensor, pos_embed: Tensor, key_padding_mask: Tensor) -> Tensor:
        return self.resampler(image_feature, pos_embed, key_padding_mask > 0.5)


def _write_companions(checkpoint: Path, folder: Path) -> None:
    """Write tokenizer IRs, chat template and the configuration files that openvino_genai and the pipeline read."""
    from openvino_tokenizers import convert_tokenizer
    from transformers import PreTrainedTokenizerFast

    if not (checkpoint / "tokenizer.json").is_file():
        raise ValueError(f"{checkpoint} has no tokenizer.json. Fetch the whole checkpoint, or correct the path.")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    if float(config.get("version", 2.0)) == 2.0:
        tokenizer.chat_template = (tokenizer.bos_token or "") + CHAT_2_0
    if not tokenizer.chat_template:
        raise ValueError(f"{checkpoint} has no chat template in tokenizer_config.json. Fetch the whole checkpoint.")
    tokenizer.save_pretrained(folder)
    for model, name in zip(convert_tokenizer(tokenizer, with_detokenizer=True), ("", "de"), strict=True):
        ov.save_model(model, folder / f"openvino_{name}tokenizer.xml")
    shutil.copy2(checkpoint / "config.json", folder)

    slices = config | config.get("slice_config", {})
    defaults = {
        "patch_size": slices.get("patch_size", 14),
        "scale_resolution": slices.get("scale_resolution", 448),
        "max_slice_nums": slices.get("max_slice_nums", 9),
        "image_size": config.get("vision_config", {}).get("image_size", 980),
        "norm_mean": [0.5] * 3,
        "norm_std": [0.5] * 3,
    }
    preprocessing = _json(checkpoint / "preprocessor_config.json")
    _write(folder / "preprocessor_config.json", defaults | preprocessing)
    generation = _json(checkpoint / "generation_config.json")
    stop = generation.get("eos_token_id", config.get("eos_token_id", tokenizer.eos_token_id))
    _write(folder / "generation_config.json", {"do_sample": False, "eos_token_id": stop})


def _json(path: Path) -> dict:
    """The content of a file, empty if it is missing."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
