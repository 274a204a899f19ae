"""The adapter's training: what is learned, and names that GenAI finds."""

import pytest
import torch
from safetensors import safe_open

from notebooks.llm_methods import convert
from notebooks.llm_methods.training import __main__ as command
from notebooks.llm_methods.training import adapter
from utils.models.questions import QUESTIONS


def test_no_question_of_the_examination_is_trained():
    asked = {question for question, _ in QUESTIONS}
    examples = adapter.pairs()
    assert len(examples) == len(set(examples)) > 40
    assert not asked & {question for question, _ in examples}
    assert all(len(answer.split()) == 1 for _, answer in examples)


def test_two_matrices_are_trained_and_begin_without_effect():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj = torch.nn.Linear(12, 8), torch.nn.Linear(12, 4)

    layer, x = Layer(), torch.randn(3, 12)
    before = layer.q_proj(x).detach()
    tensors = adapter.attach(layer)
    assert set(tensors) == {f"base_model.model.q_proj.lora_{side}.weight" for side in "AB"}
    assert torch.equal(layer.q_proj(x), before)
    with torch.no_grad():
        tensors["base_model.model.q_proj.lora_B.weight"].add_(1.0)
    down = tensors["base_model.model.q_proj.lora_A.weight"]
    assert torch.allclose(layer.q_proj(x), before + (x @ down.T).sum(-1, keepdim=True), atol=1e-5)
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == []


def test_the_committed_adapter_has_both_matrices_of_every_layer():
    with safe_open(convert.ADAPTER, framework="pt") as file:
        names = set(file.keys())
        assert len(names) == 30 * len(adapter.PROJECTIONS) * 2
        shape = file.get_slice("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight").get_shape()
        assert shape == [adapter.RANK, 576]


def test_the_command_trains_the_parts_that_it_is_asked_for(monkeypatch):
    trained = []
    monkeypatch.setattr(command, "PARTS", {part: lambda part=part: trained.append(part) for part in command.PARTS})
    command.main(["draft"])
    command.main([])
    assert trained == ["draft", "adapter", "draft"]
    with pytest.raises(SystemExit, match="There is no part 'drafts'. There are: adapter, draft."):
        command.main(["adapter", "drafts"])
