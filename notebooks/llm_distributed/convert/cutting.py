"""Cuts a transformers folder of the Llama family into narrower ones, and exports each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from notebooks.llm_distributed.pipeline.shares import Share, plan
from utils.files import sha256
from utils.models import llm, tensors
from utils.models.llm import MODEL_XML


def plan_of(checkpoint: Path, ranks: int, multiple: int) -> list[Share]:
    """The shares of a transformers folder for a number of ranks."""
    return plan(read_config(checkpoint), ranks, multiple)


def read_config(checkpoint: Path) -> dict:
    return json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))


def convert(checkpoint: Path, options: Mapping, folder: Path) -> None:
    """Cut a transformers folder, and write the FP16 IR of each share to `folder`/rank-0, rank-1, ...

    options: "ranks", "multiple" (of `plan`), and "source", a digest of the checkpoint.
    """
    for share in plan_of(checkpoint, options["ranks"], options["multiple"]):
        with TemporaryDirectory() as scratch:
            narrow = cut(checkpoint, share, Path(scratch))
            llm.to_ir(narrow, folder / f"rank-{share.rank}", tokenizer=False)
        sign(folder / f"rank-{share.rank}", share, f"{options['source']} in FP16, multiples of {options['multiple']}")


def cut(checkpoint: Path, share: Share, folder: Path) -> Path:
    """Write a rank's share as a transformers folder of its own; returns the folder."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    config, kept = read_config(checkpoint), {}
    for file in tensors.shards(checkpoint, "model.safetensors", "language model"):
        with safe_open(file, framework="pt") as source:
            for name in source.keys():  # noqa: SIM118 - no dictionary
                axis, edges = share.cut(name, config) or (0, (0, None))
                place = (slice(None),) * axis + (slice(*edges),)
                kept[name] = source.get_slice(name)[place].contiguous()
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(share.config(config)), encoding="utf-8")
    return folder


def sign(folder: Path, share: Share, source: str) -> None:
    """Write share.json: what the folder holds, what it was cut from, and the hash of its weights."""
    replace(share, source=source, weights=sha256((folder / MODEL_XML).with_suffix(".bin"))).write(folder)


def compress(base: Path, options: Mapping, folder: Path) -> None:
    """Compress the IR of each rank with NNCF, as `llm.compress` does with a whole model."""
    for ir in sorted(base.glob("rank-*")):
        share = Share.read(ir)
        llm.compress(ir, dict(options), folder / ir.name)
        sign(folder / ir.name, share, f"{share.source}, then {json.dumps(dict(options))}")
