"""LoRA: what is trained, what a packed sequence sees, and that a merged checkpoint computes the same."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from utils.models.lora import merge
from utils.training import lora

START, BRANCHES = [5, 6, 7], [([8, 9], [10, 11]), ([12], [13, 14, 2])]


def small() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


def disturb(adapter: lora.Adapter) -> None:
    with torch.no_grad():
        for up in adapter.ups:
            up.normal_(std=0.5)


def test_matrices_begin_without_effect_and_only_they_are_trained():
    network = small()
    ids = torch.arange(12)[None]
    before = network(ids).logits
    adapter = lora.Adapter(network, 3, ("q_proj", "down_proj"))
    assert torch.equal(network(ids).logits, before)
    assert [name for name, values in network.named_parameters() if values.requires_grad] == []
    disturb(adapter)
    assert not torch.allclose(network(ids).logits, before, atol=1e-3)
    lora.loss(network, lora.packed(START, BRANCHES)).backward()
    assert all(values.grad is not None and values.grad.abs().sum() > 0 for values in adapter.ups)


def test_a_layer_adds_the_product_of_both_matrices():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj = torch.nn.Linear(12, 8), torch.nn.Linear(12, 4)

    layer, x = Layer(), torch.randn(3, 12)
    before = layer.q_proj(x).detach()
    adapter = lora.Adapter(layer, 2, lora.ATTENTION[:1])
    disturb(adapter)
    down, up = adapter.downs[0], adapter.ups[0]
    assert torch.allclose(layer.q_proj(x), before + x @ (up @ down).T, atol=1e-5)


def test_each_branch_sees_the_start_and_itself():
    network = small()
    whole = lora.packed(START, BRANCHES)
    inputs = {name: values for name, values in whole.items() if name != "learned"}
    logits = network(**inputs).logits[0]
    place = len(START)
    for given, learned in BRANCHES:
        own = network(torch.tensor([[*START, *given, *learned]])).logits[0, len(START) :]
        torch.testing.assert_close(logits[place : place + len(own)], own, atol=1e-5, rtol=1e-4)
        place += len(own)


def test_few_lengths_recur_and_nothing_sees_what_fills_a_sequence_up():
    whole = lora.packed(START, BRANCHES)
    used = len(START) + sum(len(given) + len(learned) for given, learned in BRANCHES)
    seen = whole["attention_mask"][0, 0]
    assert whole["input_ids"].shape[1] == lora.MULTIPLE > used
    assert not whole["learned"][used:].any() and not seen[:used, used:].any()
    assert seen.any(1).all()  # a token that sees none has no attention


def test_the_loss_is_that_of_the_learned_tokens():
    network = small()
    losses = []
    for given, learned in BRANCHES:
        begin = len(START) + len(given)
        ids = torch.tensor([[*START, *given, *learned]])
        logits = network(ids).logits[0, begin - 1 : -1]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, begin:], reduction="none"))
    own = lora.loss(network, lora.packed(START, BRANCHES))
    torch.testing.assert_close(own, torch.cat(losses).mean(), atol=1e-5, rtol=1e-4)


def test_a_merged_checkpoint_computes_what_network_and_adapter_compute(tmp_path):
    network, ids = small(), torch.arange(12)[None]
    network.save_pretrained(tmp_path / "plain")
    (tmp_path / "plain/chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    adapter = lora.Adapter(network, 3)
    disturb(adapter)
    adapter.save(tmp_path / "adapter.safetensors")
    merge(tmp_path / "plain", tmp_path / "adapter.safetensors", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(merged(ids).logits, network(ids).logits, atol=2e-2, rtol=1e-2)  # the file is FP16
    assert (tmp_path / "merged/chat_template.jinja").read_text(encoding="utf-8") == "{{ messages }}"


def test_a_whole_layer_is_trained_saved_and_merged(tmp_path):
    network, ids = small(), torch.arange(12)[None]
    network.config.tie_word_embeddings = False
    network.save_pretrained(tmp_path / "plain")
    adapter = lora.Adapter(network, 3, ("q_proj",), whole=("lm_head",))
    assert sum(values.requires_grad for values in adapter.parameters()) == 2 * 2 + 1
    with torch.no_grad():
        network.lm_head.weight.mul_(2)
    adapter.save(tmp_path / "adapter.safetensors")
    merge(tmp_path / "plain", tmp_path / "adapter.safetensors", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(merged(ids).logits, network(ids).logits, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("change", ["another shape", "another name", "none"])
def test_an_adapter_of_another_model_is_an_error(change, tmp_path):
    network = small()
    network.save_pretrained(tmp_path / "plain")
    adapter = lora.Adapter(network, 3, ("q_proj",))
    adapter.save(tmp_path / "adapter.safetensors")
    tensors = load_file(tmp_path / "adapter.safetensors")
    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    if change == "another shape":
        tensors[first.format("A")] = torch.zeros(3, 31)
    elif change == "another name":
        for side in "AB":
            tensors[first.format(side).replace("layers.0", "layers.9")] = tensors.pop(first.format(side))
    else:
        tensors = {"weight": torch.zeros(2)}
    save_file(tensors, tmp_path / "adapter.safetensors")
    message = "has no matrices of LoRA" if change == "none" else "is of another model"
    with pytest.raises(ValueError, match=message):
        merge(tmp_path / "plain", tmp_path / "adapter.safetensors", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
