"""The committed checkpoints: each file carries the stages of its training."""

import json

import pytest
from safetensors import safe_open

from utils.paths import ROOT

FILES = sorted(ROOT.glob("notebooks/*/tiny/**/*.safetensors"))
OLDER = {  # made before training wrote its stages into files
    "gpt_sovits/tiny/bert/model.safetensors",
    "gpt_sovits/tiny/hubert/model.safetensors",
    "gpt_sovits/tiny/t2s/model.safetensors",
    "llm_methods/tiny/draft.safetensors",
    "rag_serving/tiny/ranking.safetensors",
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT / "notebooks").as_posix())
def test_it_names_steps_time_processor_and_code_of_its_training(file):
    with safe_open(file, "numpy") as opened:
        stages = json.loads((opened.metadata() or {}).get("training", "[]"))
    assert bool(stages) == (file.relative_to(ROOT / "notebooks").as_posix() not in OLDER)
    for stage in stages:
        assert stage["steps"] > 0 and stage["seconds"] > 0
        assert stage["processors"] and stage["code"]
