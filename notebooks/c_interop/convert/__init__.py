"""What the notebook runs: the language model's folder, and the programs in other languages (`clients`).

`bindings` writes declarations of llm.h in other languages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import openvino as ov

from notebooks.c_interop import network
from utils import paths
from utils.models import llm, llm_folders

# Values of MODEL. checkpoint: in checkpoints.toml; ram_gb: memory for its export.
MODELS = {"tiny": {"checkpoint": "smollm2", "ram_gb": 4}, "released": {"checkpoint": "qwen2_5_1_5b", "ram_gb": 12}}
PRECISIONS = ("FP16", "INT8", "INT4")


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of a model, or of the checkpoint at CHECKPOINT."""
    return llm_folders.checkpoint_folder(MODELS, model)


def prepare(model: str = "tiny", precision: str = "FP16") -> Path:
    """The IR folder of a language model with its tokenizers.

    Raises ValueError for an unknown name, preflight.NotEnough where memory or disk is too small.
    """
    if model not in MODELS or precision not in PRECISIONS:
        known = f"Models: {', '.join(MODELS)}; precisions: {', '.join(PRECISIONS)}."
        raise ValueError(f"There is no model {model!r} at {precision!r}. {known}")
    name, ram_gb = MODELS[model]["checkpoint"], MODELS[model]["ram_gb"]
    return llm.ir_folder(name, checkpoint_folder(model), precision, ram_gb=ram_gb)


def build_folder() -> Path:
    """Where compiled libraries and programs are kept."""
    return paths.models_dir() / "c_interop"


def graphs() -> dict[str, Callable[[], ov.Model]]:
    """What `make arm` runs: the small models whose tokens are computed by hand."""
    return {"arithmetic": network.arithmetic_model, "recitation": partial(network.recitation_model, list(b"hello "))}
