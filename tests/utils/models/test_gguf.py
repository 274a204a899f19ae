"""A GGUF file becomes a transformers folder with the same numbers and the file's own tokenizer."""

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from utils.models import gguf


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A random Llama of one layer as a GGUF file, the same network in PyTorch, and the byte-level vocabulary."""
    import torch
    from gguf import GGUFWriter
    from transformers import LlamaConfig, LlamaForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<unk>", "<|im_start|>", "<|im_end|>", *alphabet, "he", "ll", "hell"]
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    network = LlamaForCausalLM(config).eval()
    file = tmp_path_factory.mktemp("gguf") / "random.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([2, gguf.CONTROL_TOKEN, gguf.CONTROL_TOKEN] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "l l", "he ll"])
    for name, number in {"bos": 1, "eos": 2, "unk": 0, "pad": 2}.items():
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_chat_template("{{ messages[0]['content'] }}<|im_end|>")
    _add_weights(writer, network)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file, network, tokens


def _add_weights(writer, network) -> None:
    """Add weights by llama.cpp's names. Its rotary embedding pairs neighbours, so rows of q and k are interleaved."""
    state = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
    parts = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    parts |= {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
    parts |= {"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    for ours, theirs in parts.items():
        weight = state[f"model.layers.0.{ours}.weight"]
        if theirs in ("attn_q", "attn_k"):
            heads = 4 if theirs == "attn_q" else 2
            weight = weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"blk.0.{theirs}.weight", np.ascontiguousarray(weight))
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])


def test_a_gguf_file_becomes_its_pytorch_twin_with_its_own_tokenizer(llama, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file, network, tokens = llama
    gguf.to_transformers(file, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.arange(5, 17)[None]
    with torch.inference_mode():
        np.testing.assert_allclose(model(ids).logits, network(ids).logits, atol=2e-3)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "<|im_start|>hello 12é"
    found = tokenizer(text)["input_ids"]
    assert [tokens[i] for i in found] == ["<|im_start|>", "hell", "o", "Ġ", "1", "2", "Ã", "©"]
    assert tokenizer.decode(found) == text
    special = tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token
    assert special == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "he"}], tokenize=False) == "he<|im_end|>"
