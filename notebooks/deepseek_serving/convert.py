"""Checkpoint to the IR folder that is served: optimum-intel's export, then INT8 or INT4 weights by NNCF.

The steps are those of `utils.models.llm`, cached under the same keys as in graph_customization: what one of the two
notebooks converted, the other finds.
"""

from __future__ import annotations

from pathlib import Path

from utils import weights
from utils.models import llm

PRECISIONS = ("INT4", "INT8", "FP16")

# What MODEL may be: checkpoint, how its INT4 is made (one of llm.COMPRESSIONS) and in groups of how many weights,
# memory its export takes, and whether its chat template opens <think>, so that every answer begins as a thought.
# The smaller a model, the more 4 bits hurt it, and the less it costs to look at data while choosing them.
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
    """The transformers folder of a model (or of the reader's own, CHECKPOINT=path), made from a GGUF file."""
    return llm.transformers_folder(model, weights.resolve(_settings(model)["checkpoint"]))


def prepare(model: str = "tiny", precision: str = "INT4") -> Path:
    """The IR folder of a model with tokenizers, at one of PRECISIONS. Converted once, then cached.

    Raises ValueError for an unknown name, preflight.NotEnough where memory or disk will not do.
    """
    settings = _settings(model)
    if precision not in PRECISIONS:
        raise ValueError(f"There is no {precision} of {model}. Choose one of: {', '.join(PRECISIONS)}.")
    recipe = settings["int4"] if precision == "INT4" else precision
    sizes = {"group_size": settings["group_size"], "ram_gb": settings["ram_gb"]}
    return llm.ir_folder(model, checkpoint_folder(model), recipe, **sizes)


def _settings(model: str) -> dict:
    if model not in MODELS:
        raise ValueError(f"There is no model {model!r}. Choose one of: {', '.join(MODELS)}.")
    return MODELS[model]
