"""Models of several sub-models: IR folders with a file for each, converted from a checkpoint and compressed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import openvino as ov

from utils import weights
from utils.convert import cached_in_child

PRECISIONS = ("FP16", "INT8", "INT4")  # of the weights; FP16: the 16 bits of the checkpoint
LANGUAGE = "language"  # the sub-model that INT4 compresses to 4 bits


def xml(part: str) -> str:
    """The file name of a sub-model."""
    return f"openvino_{part}_model.xml"


def compress(ir: Path, precision: str, folder: Path, parts: Collection[str], int4: Mapping) -> None:
    """Write the IR folder `ir` with INT8 weights; at INT4 the language model has 4-bit weights.

    parts: the sub-models to compress; all other files are copied. int4: NNCF's options for the language model, such as
    `group_size`. Raises ValueError for another precision.
    """
    import nncf

    if precision not in PRECISIONS[1:]:
        raise ValueError(f"There is no precision {precision!r} to compress to. Choose one of: INT8, INT4.")
    nncf.set_log_level(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    models = {xml(part) for part in parts} | {xml(part).replace(".xml", ".bin") for part in parts}
    for file in ir.iterdir():
        if file.name not in models | {"manifest.json"}:
            shutil.copy2(file, folder)
    for part in parts:
        options = {"mode": nncf.CompressWeightsMode.INT8_ASYM}
        if precision == "INT4" and part == LANGUAGE:
            options = {"mode": nncf.CompressWeightsMode.INT4_ASYM, **int4}
        print(f"Compressing {part} ...", flush=True)
        model = nncf.compress_weights(ov.Core().read_model(ir / xml(part)), **options)
        ov.save_model(model, folder / xml(part), compress_to_fp16=False)


def prepare(
    name: str,
    models: Mapping[str, Mapping],
    model: str,
    precision: str,
    to_ir: Callable[[Path, Path], None],
    compress: Callable[[Path, str, int, Path], None],
) -> Path:
    """The IR folder of one of a notebook's models at one of PRECISIONS. CHECKPOINT names another checkpoint.

    name: first part of the folders' names. models: by the name that MODEL gives, each with "checkpoint"
    (checkpoints.toml), "group_size" of its INT4 weights and "ram_gb" that its conversion needs.
    to_ir(checkpoint, folder) writes the FP16 folder, compress(ir, precision, group_size, folder) compresses it. Each
    runs once, in a child process. Raises ValueError for unknown names, preflight.NotEnough where memory or disk is too
    small.
    """
    if model not in models or precision not in PRECISIONS:
        raise ValueError(
            f"There is no {precision} of {model!r}. Models: {', '.join(models)}; precisions: {', '.join(PRECISIONS)}."
        )
    settings = models[model]
    checkpoint, group_size, ram_gb = (settings[key] for key in ("checkpoint", "group_size", "ram_gb"))
    checkpoint, name = weights.resolve(checkpoint), f"{name}-{model}"
    base = cached_in_child(f"{name}-fp16", to_ir, checkpoint, checkpoint=checkpoint, ram_gb=ram_gb)
    if precision == "FP16":
        return base
    arguments = {"precision": precision, "group_size": group_size}
    name = f"{name}-{precision.lower()}"
    return cached_in_child(
        name, compress, base, precision, group_size, checkpoint=base, arguments=arguments, ram_gb=ram_gb
    )
