"""Small seeded checkpoints of each kind, and ChatGLM's arithmetic in NumPy, written from its published architecture."""

import numpy as np
import torch
from transformers import (
    GlmConfig,
    GlmForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.05,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CLASSES = {  # by a name of ours: configuration, network, what is special
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama untied": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "head_dim": 48}),
    "llama3 positions": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3}),
    "multi-query": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1}),
    "one head each": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 48}),
    "glm": (GlmConfig, GlmForCausalLM, {"head_dim": 32, "attention_bias": True}),
}
CHATGLM = {
    "model_type": "chatglm",
    "padded_vocab_size": 300,
    "hidden_size": 128,
    "ffn_hidden_size": 256,
    "num_layers": 2,
    "num_attention_heads": 4,
    "kv_channels": 32,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "layernorm_epsilon": 1e-5,
    "add_qkv_bias": True,
    "add_bias_linear": False,
}


def network(kind: str):
    """A random network of transformers with FP16 weights and gains and biases that matter."""
    torch.manual_seed(0)
    configuration, model, special = CLASSES[kind]
    made = model(configuration(**SIZES | special)).eval()
    for parameter in made.parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return made.half().float().requires_grad_(False)


def tensors(made) -> dict[str, np.ndarray]:
    """The parameters of a network by name, without an output layer that is the embedding."""
    state = {name: value.numpy() for name, value in made.state_dict().items()}
    if made.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return state


def chatglm_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Random FP16 weights with the names and shapes of ChatGLM2 and 3."""
    random = np.random.default_rng(seed)
    hidden, mlp, packed = CHATGLM["hidden_size"], CHATGLM["ffn_hidden_size"], 128 + 2 * 64
    shapes = {
        "transformer.embedding.word_embeddings.weight": (300, hidden),
        "transformer.encoder.final_layernorm.weight": (hidden,),
        "transformer.output_layer.weight": (300, hidden),
        "transformer.rotary_pos_emb.inv_freq": (8,),
    }
    for i in range(CHATGLM["num_layers"]):
        layer = f"transformer.encoder.layers.{i}."
        shapes |= {
            f"{layer}input_layernorm.weight": (hidden,),
            f"{layer}self_attention.query_key_value.weight": (packed, hidden),
            f"{layer}self_attention.query_key_value.bias": (packed,),
            f"{layer}self_attention.dense.weight": (hidden, hidden),
            f"{layer}post_attention_layernorm.weight": (hidden,),
            f"{layer}mlp.dense_h_to_4h.weight": (2 * mlp, hidden),
            f"{layer}mlp.dense_4h_to_h.weight": (hidden, mlp),
        }
    return {
        name: (random.standard_normal(shape) * 0.05 if len(shape) == 2 else random.uniform(0.5, 1.5, shape))
        .astype(np.float16)
        .astype(np.float32)
        for name, shape in shapes.items()
    }


def chatglm_logits(weights: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Logits [tokens, vocabulary] of token ids [tokens]: a loop over tokens, heads and pairs of numbers."""

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"]

    def turn(head, position):  # the first half of a head, in pairs of neighbours
        out = head.copy()
        for pair in range(8):
            angle = position * 10_000.0 ** (-2 * pair / 16)
            a, b = head[2 * pair], head[2 * pair + 1]
            out[2 * pair] = a * np.cos(angle) - b * np.sin(angle)
            out[2 * pair + 1] = b * np.cos(angle) + a * np.sin(angle)
        return out

    x = weights["transformer.embedding.word_embeddings.weight"][ids].astype(np.float64)
    for i in range(CHATGLM["num_layers"]):
        layer = f"transformer.encoder.layers.{i}."
        packed = norm(x, f"{layer}input_layernorm") @ weights[f"{layer}self_attention.query_key_value.weight"].T
        packed = packed + weights[f"{layer}self_attention.query_key_value.bias"]
        rows = []
        for token in range(len(ids)):
            heads = []
            for head in range(4):
                query = turn(packed[token, 32 * head : 32 * head + 32], token)
                first = 128 + 32 * (head // 2)  # two heads of queries share a head of keys
                keys = [turn(packed[past, first : first + 32], past) for past in range(token + 1)]
                values = packed[: token + 1, first + 64 : first + 96]
                scores = np.exp([query @ key / np.sqrt(32) for key in keys])
                heads.append(scores / scores.sum() @ values)
            rows.append(np.concatenate(heads))
        x = x + np.array(rows) @ weights[f"{layer}self_attention.dense.weight"].T
        gate_up = norm(x, f"{layer}post_attention_layernorm") @ weights[f"{layer}mlp.dense_h_to_4h.weight"].T
        gate, up = gate_up[:, :256], gate_up[:, 256:]
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{layer}mlp.dense_4h_to_h.weight"].T
    return norm(x, "transformer.encoder.final_layernorm") @ weights["transformer.output_layer.weight"].T
