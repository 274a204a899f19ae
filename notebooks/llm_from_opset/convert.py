"""Checkpoints to OpenVINO IR without PyTorch: `convert` writes the language model, `add_tokenizer` the tokenizer.

The same checkpoints are exported by optimum-intel in `utils.models.llm`, for comparison.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import openvino as ov

from notebooks.llm_from_opset.pipeline import PRECISIONS, convert
from utils.convert import cached_in_child
from utils.models import llm, llm_folders

# Values of MODEL. checkpoint: in a checkpoints.toml. group_size: of INT4 weights. ram_gb: memory for the export.
MODELS = {
    "tiny": {"checkpoint": "smollm2", "group_size": 64, "ram_gb": 3},
    "released": {"checkpoint": "qwen2_5_1_5b", "group_size": 128, "ram_gb": 9},
}
VERSIONS = ("openvino", "openvino-tokenizers", "transformers")


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of a model, or of the checkpoint at CHECKPOINT."""
    return llm_folders.checkpoint_folder(MODELS, model)


def prepare(model: str = "tiny", precision: str = "FP16") -> Path:
    """The IR folder of a model that is built from operations. It is written once and cached.

    Raises ValueError for an unknown name, preflight.NotEnough where memory or disk is too small.
    """
    if model not in MODELS or precision not in PRECISIONS:
        known = f"Models: {', '.join(MODELS)}; precisions: {', '.join(PRECISIONS)}"
        raise ValueError(f"There is no {precision} of {model!r}. {known}.")
    settings, checkpoint = MODELS[model], checkpoint_folder(model)
    name, group_size = f"{settings['checkpoint']}-operations-{precision.lower()}", settings["group_size"]
    options = {"checkpoint": checkpoint, "arguments": {"group_size": group_size}, "versions": VERSIONS, "ram_gb": 1}
    return cached_in_child(name, to_ir, checkpoint, precision, group_size, **options)


def exported(model: str = "tiny", precision: str = "FP16") -> Path:
    """The IR folder of the same model as optimum-intel exports and NNCF compresses it."""
    settings = MODELS[model]
    options = {"group_size": settings["group_size"], "ram_gb": settings["ram_gb"]}
    return llm.ir_folder(settings["checkpoint"], checkpoint_folder(model), precision, **options)


def to_ir(checkpoint: Path, precision: str, group_size: int, folder: Path) -> None:
    """Write a folder that `openvino_genai.LLMPipeline` opens, from a checkpoint's folder."""
    convert(checkpoint, folder, precision, group_size)
    add_tokenizer(checkpoint, folder)


def add_tokenizer(checkpoint: Path, folder: Path, remote_code: bool = False) -> None:
    """Write the checkpoint's tokenizer as OpenVINO models, and copy its configuration.

    remote_code: whether the checkpoint's own Python code may run, which ChatGLM's tokenizer needs. Raises ValueError
    for a tokenizer that needs it where it may not.
    """
    from openvino_tokenizers import convert_tokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=remote_code)
    models = convert_tokenizer(tokenizer, with_detokenizer=True)
    for name, model in zip(("tokenizer", "detokenizer"), models, strict=True):
        ov.save_model(model, folder / f"openvino_{name}.xml")
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        if (checkpoint / name).is_file():
            shutil.copy2(checkpoint / name, folder)
