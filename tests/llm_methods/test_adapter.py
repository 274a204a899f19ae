"""The adapter's training: what is learned, and names that GenAI finds."""

import pytest
from safetensors import safe_open

from notebooks.llm_methods import convert
from notebooks.llm_methods.training import __main__ as command
from notebooks.llm_methods.training import adapter
from utils.models.questions import QUESTIONS
from utils.training import parts


def test_no_question_of_the_examination_is_trained():
    asked = {question for question, _ in QUESTIONS}
    examples = adapter.pairs()
    assert len(examples) == len(set(examples)) > 40
    assert not asked & {question for question, _ in examples}
    assert all(len(answer.split()) == 1 for _, answer in examples)


def test_the_committed_adapter_has_both_matrices_of_every_layer():
    with safe_open(convert.ADAPTER, framework="pt") as file:
        names = set(file.keys())
        assert len(names) == 30 * len(adapter.PROJECTIONS) * 2
        shape = file.get_slice("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight").get_shape()
        assert shape == [adapter.RANK, 576]


def test_the_command_trains_the_parts_that_it_is_asked_for(monkeypatch):
    trained = []
    monkeypatch.setattr(command, "PARTS", {part: lambda part=part: trained.append(part) for part in command.PARTS})
    parts.run(command.PARTS, ["draft"])
    parts.run(command.PARTS, [])
    assert trained == ["draft", "adapter", "draft"]
    with pytest.raises(SystemExit, match="There is no part 'drafts'. There are: adapter, draft."):
        parts.run(command.PARTS, ["adapter", "drafts"])
