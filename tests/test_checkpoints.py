"""The committed checkpoints: each file carries the stages of its training."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from utils.paths import ROOT

NOTEBOOKS = ROOT / "notebooks"
NAMES = sorted(file.relative_to(NOTEBOOKS).as_posix() for file in NOTEBOOKS.glob("*/tiny/**/*.safetensors"))
RECORDED_LATER = {  # made before training wrote its stages: these come from TRAINING.md or README of that time
    "gpt_sovits/tiny/bert/model.safetensors",
    "gpt_sovits/tiny/hubert/model.safetensors",
    "gpt_sovits/tiny/t2s/model.safetensors",
    "llm_methods/tiny/draft.safetensors",
}


def stages_of(file: Path) -> list[dict]:
    """The stages in a file's metadata, or in the .json of the same name."""
    with safe_open(file, "numpy") as opened:
        training = (opened.metadata() or {}).get("training")
    if training:
        return json.loads(training)
    return json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["training"]


@pytest.mark.parametrize("name", NAMES)
def test_it_names_steps_time_processor_and_code_of_its_training(name):
    stages = stages_of(NOTEBOOKS / name)
    assert stages
    for stage in stages:
        assert stage["steps"] > 0 and stage["seconds"] > 0
        assert stage["processors"] and stage["code"]
        assert ("recorded" in stage) == (name in RECORDED_LATER)
