"""Checkpoints to shares: a folder with rank-0, rank-1, ... for a number of ranks and a precision.

transformers folder -- cutting.cut ------>  a narrower model for each rank, a transformers folder, too
narrower model      -- llm.to_ir -------->  its FP16 IR with share.json
FP16 IR             -- cutting.compress ->  INT8 or INT4 IR
"""

from __future__ import annotations

from pathlib import Path

from notebooks.llm_distributed.convert import cutting, staging
from utils.convert import cached_in_child, checkpoint_sha256
from utils.models import llm, llm_folders

PRECISIONS = ("FP16", "INT8", "INT4")
# Values of MODEL. checkpoint: in checkpoints.toml. group_size: of its INT4 weights. ram_gb: memory for its export.
MODELS = {
    "tiny": {"checkpoint": "smollm2", "group_size": 64, "ram_gb": 4},
    "released": {"checkpoint": "qwen2_5_1_5b", "group_size": 128, "ram_gb": 12},
}


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of a model, or of the checkpoint at CHECKPOINT. Raises ValueError for an unknown name."""
    return llm_folders.checkpoint_folder(MODELS, model)


def prepare(model: str = "tiny", ranks: int = 2, precision: str = "FP16") -> list[Path]:
    """The IR folders of all ranks, converted once and then cached. One rank holds the whole model.

    Raises ValueError for unknown names and for a number of ranks that the model cannot be cut for.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"There is no precision {precision!r}. Choose one of: {', '.join(PRECISIONS)}.")
    checkpoint, settings = checkpoint_folder(model), MODELS[model]
    group_size, ram_gb = settings["group_size"], settings["ram_gb"]
    cutting.plan_of(checkpoint, ranks, group_size)  # a number of ranks that is not possible is an error here
    name = f"{settings['checkpoint']}-{ranks}-ranks"
    digest = checkpoint_sha256(checkpoint)
    options = {"ranks": ranks, "multiple": group_size, "source": digest}
    base = cached_in_child(
        f"{name}-fp16", cutting.convert, checkpoint, options, checkpoint=digest, arguments=options, ram_gb=ram_gb
    )
    if precision == "FP16":
        return folders(base)
    options = llm.COMPRESSIONS[precision] | {"group_size": group_size}
    return folders(
        cached_in_child(
            f"{name}-{precision.lower()}",
            cutting.compress,
            base,
            options,
            checkpoint=base,
            arguments=options,
            ram_gb=ram_gb,
        )  # fmt: skip
    )


def prepare_stages(model: str = "tiny", stages: int = 2) -> list[Path]:
    """The FP16 IR folders of a model that is cut between layers, converted once and then cached."""
    checkpoint, settings = checkpoint_folder(model), MODELS[model]
    digest = checkpoint_sha256(checkpoint)
    options = {"stages": stages, "source": digest}
    name, ram_gb = f"{settings['checkpoint']}-{stages}-stages-fp16", settings["ram_gb"]
    base = cached_in_child(
        name, staging.convert, checkpoint, options, checkpoint=digest, arguments=options, ram_gb=ram_gb
    )
    return [base / f"stage-{stage}" for stage in range(stages)]


def folders(base: Path) -> list[Path]:
    """The folders rank-0, rank-1, ... in `base`."""
    return [base / f"rank-{rank}" for rank in range(len(list(base.glob("rank-*"))))]
