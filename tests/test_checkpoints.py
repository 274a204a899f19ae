"""The committed checkpoints: each file carries the stages of its training."""

import json

import pytest
from safetensors import safe_open

from utils.paths import ROOT

NOTEBOOKS = ROOT / "notebooks"
NAMES = sorted(file.relative_to(NOTEBOOKS).as_posix() for file in NOTEBOOKS.glob("*/tiny/**/*.safetensors"))
OLDER = {  # made before training wrote its stages into files
    "gpt_sovits/tiny/bert/model.safetensors",
    "gpt_sovits/tiny/hubert/model.safetensors",
    "gpt_sovits/tiny/t2s/model.safetensors",
    "llm_methods/tiny/draft.safetensors",
}


@pytest.mark.parametrize("name", NAMES)
def test_it_names_steps_time_processor_and_code_of_its_training(name):
    with safe_open(NOTEBOOKS / name, "numpy") as opened:
        stages = json.loads((opened.metadata() or {}).get("training", "[]"))
    assert bool(stages) == (name not in OLDER)
    for stage in stages:
        assert stage["steps"] > 0 and stage["seconds"] > 0
        assert stage["processors"] and stage["code"]
