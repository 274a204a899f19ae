"""The models of the guide: the checkpoint, its FP16 IR, that IR after each weight method, and smaller drafts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from notebooks.llm_methods.convert.compressing import write_compressed
from notebooks.llm_methods.convert.drafting import write_draft, write_trained
from utils import bench, preflight
from utils.convert import cached, cached_in_child
from utils.files import sha256
from utils.models import llm, llm_folders
from utils.paths import notebook_dir

# Values of MODEL. checkpoint: in checkpoints.toml; ram_gb: memory for its export.
MODELS = {"tiny": {"checkpoint": "smollm2", "ram_gb": 4}, "released": {"checkpoint": "qwen2_5_1_5b", "ram_gb": 12}}
DRAFT_SHARE = 0.8  # of the layers
TINY = notebook_dir(__package__) / "tiny"  # what `training` wrote
ADAPTER, DRAFT = TINY / "adapter.safetensors", TINY / "draft.safetensors"
COST = "compression.json"


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of a model, or of the checkpoint at CHECKPOINT."""
    return llm_folders.checkpoint_folder(MODELS, model)


def prepare(model: str = "tiny", call: str = "model", name: str = "FP16") -> Path:
    """The IR folder of a model: at FP16, or after the call of the weight method `name`. It is made once and cached.

    Raises ValueError for an unknown model, preflight.NotEnough where memory or disk is too small, RuntimeError where
    the process of a compression dies, and whatever NNCF raises.
    """
    if model not in MODELS:
        raise ValueError(f"There is no model {model!r}. Models: {', '.join(MODELS)}.")
    checkpoint, ram_gb = MODELS[model]["checkpoint"], MODELS[model]["ram_gb"]
    base = llm.ir_folder(checkpoint, checkpoint_folder(model), ram_gb=ram_gb)
    if call == "model":
        return base
    words = "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")

    # `bench` measures the memory from here, so that a change of it does not compress all models again.
    @cached(f"{checkpoint}-{words}", checkpoint=base, arguments={"call": call}, code=write_compressed)
    def build(folder: Path) -> None:
        print(f"Compressing: {name} ...", file=sys.stderr, flush=True)
        with preflight.Child(f"Compressing ({name})") as child:
            seconds = child.call(write_compressed, base, call, folder)
            cost = {"seconds": round(seconds, 1), "peak_mb": round(child.call(bench.peak_bytes) / 1e6)}
        (folder / COST).write_text(json.dumps(cost), encoding="utf-8")

    return build()


def cost(folder: Path) -> dict:
    """What a compression took: "seconds", and "peak_mb" of its process. Empty for the FP16 model."""
    file = folder / COST
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def draft(model: str = "tiny", share: float = DRAFT_SHARE) -> Path:
    """The IR folder of a smaller model at 8 bits: a share of the model's layers, its embedding and its head."""
    checkpoint, arguments = checkpoint_folder(model), {"share": share}
    name = f"{MODELS[model]['checkpoint']}-draft"
    return cached_in_child(name, write_draft, checkpoint, share, checkpoint=checkpoint, arguments=arguments)


def trained_draft(model: str = "tiny", weights: Path = DRAFT) -> Path:
    """The IR folder of the draft at 8 bits whose layers `training` trained. Raises ValueError where it is missing, or
    belongs to another model."""
    checkpoint = checkpoint_folder(model)
    arguments = {"weights": sha256(weights) if weights.is_file() else ""}
    name = f"{MODELS[model]['checkpoint']}-trained-draft"
    return cached_in_child(name, write_trained, checkpoint, weights, checkpoint=checkpoint, arguments=arguments)
