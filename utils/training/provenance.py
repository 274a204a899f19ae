"""How a checkpoint was made: the stages of its training, which its safetensors file carries in its metadata.

Read them with `json.loads(safe_open(file, "numpy").metadata()["training"])`.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from utils import bench
from utils.files import replaced
from utils.paths import ROOT

STAGES: list[dict] = []  # of the checkpoint that this process trains, in their order


def stage(name: str, steps: int, seconds: float, earlier: Mapping | None = None) -> dict:
    """A stage of a training: its time, and the processors and versions of the code that it ran with.

    earlier: what the stage was when it was stopped.
    """
    earlier = earlier or {}
    made: dict = {"stage": name, "steps": steps, "seconds": round(earlier.get("seconds", 0) + seconds)}
    for key, value in (("processors", processor()), ("code", code_version())):
        made[key] = [*dict.fromkeys([*earlier.get(key, []), value])]
    return made


def metadata() -> dict[str, str]:
    """The metadata of a safetensors file that this process trained."""
    return {"format": "pt", "training": json.dumps(STAGES)}


def stamp(path: Path) -> None:
    """Put the stages into the metadata of a safetensors file, or of all in a folder."""
    for file in [path] if path.is_file() else sorted(path.rglob("*.safetensors")):
        tensors = load_file(file)
        with replaced(file) as partial:
            save_file(tensors, partial, metadata())


def processor() -> str:
    """What PyTorch computes on: the name of the GPU, or of the processor with its number of cores."""
    if torch.get_default_device().type == "cuda":
        return torch.cuda.get_device_name()
    machine = bench.machine()
    return f"{machine['cpu']}, {machine['cores']} cores"


@functools.cache
def code_version() -> str:
    """The commit of the code, with "-dirty" where files differ from it; "unknown" outside a clone."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    except OSError:  # there is no git
        return "unknown"
    return done.stdout.strip() or "unknown"
