"""Checkpoint to the IR folder that is served: optimum-intel's export, then INT8 or INT4 weights by NNCF.

The steps are those of `utils.models.llm`. Other notebooks with the same checkpoint and options
share the cached folders.
"""

from __future__ import annotations

from pathlib import Path

from utils.models import llm_folders

PRECISIONS = ("INT4", "INT8", "FP16")

# Values of MODEL. checkpoint: in checkpoints.toml. int4: what INT4 means for it, one of llm.COMPRESSIONS.
# group_size: of its INT4 weights. ram_gb: memory that its export needs. thinks: whether its chat template ends with
# <think>, so that every answer begins with thoughts.
# The tiny model loses most by rounding to 4 bits, and scale estimation costs least on it.
MODELS = {
    "tiny": {
        "checkpoint": "smollm2",
        "int4": "INT4 scale estimation",
        "group_size": 64,
        "ram_gb": 3,
        "thinks": False,
    },
    "released": {
        "checkpoint": "deepseek_r1_distill_qwen_1_5b",
        "int4": "INT4",
        "group_size": 128,
        "ram_gb": 9,
        "thinks": True,
    },
    "released-7b": {
        "checkpoint": "deepseek_r1_distill_qwen_7b",
        "int4": "INT4",
        "group_size": 128,
        "ram_gb": 36,
        "thinks": True,
    },
}


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of a model, or of the checkpoint at CHECKPOINT; a GGUF file is converted once."""
    return llm_folders.checkpoint_folder(MODELS, model)


def prepare(model: str = "tiny", precision: str = "INT4") -> Path:
    """The IR folder of a model at one of PRECISIONS, with tokenizers. It is converted once and cached.

    Raises ValueError for an unknown name, preflight.NotEnough where memory or disk is too small.
    """
    return llm_folders.prepare(MODELS, model, precision, PRECISIONS)
