"""The folders of a notebook's language models, by the value of MODEL and a precision.

`models` is the notebook's own dictionary: for each value of MODEL the name of its "checkpoint" in checkpoints.toml, and
for `prepare` also "int4" (what INT4 means for it: one of llm.COMPRESSIONS), "group_size" of its INT4 weights, and
"ram_gb" (memory that its export needs).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from utils import weights
from utils.models import llm


def checkpoint_folder(models: Mapping[str, Mapping], model: str) -> Path:
    """The transformers folder of a model, or of the checkpoint at CHECKPOINT; a GGUF file is converted once.

    Raises ValueError for an unknown name.
    """
    name = _settings(models, model)["checkpoint"]
    return llm.transformers_folder(name, weights.resolve(name))


def prepare(models: Mapping[str, Mapping], model: str, precision: str, precisions: Collection[str]) -> Path:
    """The IR folder of a model at one of `precisions`, with tokenizers. It is converted once and cached.

    Raises ValueError for an unknown name, preflight.NotEnough where memory or disk is too small.
    """
    settings = _settings(models, model)
    if precision not in precisions:
        raise ValueError(f"There is no {precision} of {model}. Choose one of: {', '.join(precisions)}.")
    return llm.ir_folder(
        settings["checkpoint"],
        checkpoint_folder(models, model),
        settings["int4"] if precision == "INT4" else precision,
        group_size=settings["group_size"],
        ram_gb=settings["ram_gb"],
    )


def _settings(models: Mapping[str, Mapping], model: str) -> Mapping:
    if model not in models:
        raise ValueError(f"There is no model {model!r}. Choose one of: {', '.join(models)}.")
    return models[model]
