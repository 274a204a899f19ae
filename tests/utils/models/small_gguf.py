"""Small GGUF files for tests: random networks of each architecture, vocabularies of each kind, quantized weights.

The names of the tensors are those of gguf's own table. What llama.cpp's converter does to some weights (`as_in_gguf`)
and the layouts of Q4_K and Q6_K, for which the package gguf has no quantizer, are written here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from utils.models.gguf_tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from utils.models.llm import TEXT

CHINESE = "天气很好，我们去公园散步。今天是二〇二六年十一月。你好，世界！北京的天气很好。" * 20
CODE = "def add(a, b):\n    return a + b  # 123 + 4567\n\n\nfor i in range(10):\n\tprint(i)\n" * 20
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
SHIFTED = ("gemma2", "gemma3", "nemotron")  # the network adds 1 to the gains of its norms, the file has the sum
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

TEXTS = (
    "Alice was beginning to get very tired of sitting by her sister on the bank.",
    "天气很好，我们去公园散步。",
    "Mixed 中文 and English, 123456 and ٣٤٥, ½ and Ⅷ.",
    "def f(x):\n\treturn x ** 2   # squares\n\n\n",
    "  two leading, three   inside, trailing   ",
    "emoji 👩‍👩‍👧 🇪🇸 ✈️ and a\u0301 combined, ﬁ ligature",
    "I'LL we've it's DON'T 'tis",
    "CamelCase HTTPServer /usr/local/bin a/b\r\n\r\nnext",
    "\u00a0non-breaking\u3000ideographic\u2028separators",
    "<|im_start|>user\nhi<|im_end|>\n",
    "",
)

# Pre-tokenizers as the published tokenizer.json files of these models have them.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}"
    r"\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"qwen2": _LLAMA3.replace("{1,3}", ""), "llama-bpe": _LLAMA3, "tekken": _TEKKEN}


def byte_level(pre: str, size: int = 420) -> Tokenizer:
    """A byte-level BPE as models with this value of tokenizer.ggml.pre have it, trained on a few pages."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    if pre in PATTERNS:
        first = [pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated")]
    else:
        first = {"smollm": [pre_tokenizers.Digits(individual_digits=True)], "gpt-2": []}[pre]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in PATTERNS)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, last])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_english(), CHINESE, CODE], trainer)
    return tokenizer


def _english() -> str:
    return (TEXT / "evaluation.txt").read_text(encoding="utf-8")[:8000]


def sentencepiece(size: int = 600) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a SentencePiece BPE: unknown, BOS, EOS, 256 bytes, merged tokens, characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    text = [_english().replace("\n", " "), CHINESE]
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    merged = [left + right for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]
    letters = sorted(token for token in tokenizer.get_vocab() if len(token) == 1)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *merged, *letters, "<|tool|>"]
    scores = [0.0] * 259 + [-float(i) for i in range(len(merged) + len(letters))] + [0.0]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(merged) + len(letters)) + [USER_DEFINED]
    return tokens, scores, kinds


def greedy_sentencepiece(text: str, tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> list[int]:
    """SentencePiece's BPE by its definition: join the two neighbours with the best score, the leftmost first."""
    ids = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == NORMAL}
    pieces = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(scores[ids[a + b]], -i) for i, (a, b) in enumerate(zip(pieces, pieces[1:])) if a + b in ids]  # noqa: B905
        if not pairs:
            break
        i = -max(pairs)[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return [n for piece in pieces for n in ([ids[piece]] if piece in ids else [3 + b for b in piece.encode()])]


# --- Networks ---------------------------------------------------------------------------------------------------


def network(architecture: str, vocabulary: int, width: int = 64, **settings):
    """A random network of 2 layers in float32, by the architecture's name in GGUF. FP16 can hold its numbers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kinds = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text"}
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if architecture in ("qwen3", "qwen3moe", "gemma2", "gemma3"):
        sizes["head_dim"] = width // 2  # more than width / heads, as these models have it
    if architecture in ("qwen2moe", "qwen3moe"):
        sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    if architecture == "qwen2moe":
        sizes |= {"shared_expert_intermediate_size": 96}
    if architecture == "qwen3moe":
        sizes |= {"norm_topk_prob": True}
    if architecture in ("gemma2", "gemma3"):
        sizes |= {"query_pre_attn_scalar": width // 2, "sliding_window": 16}
    if architecture == "gemma3":
        sizes |= {"num_hidden_layers": 6}  # the sixth has no window
    if architecture == "lfm2":
        sizes |= {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "norm_eps": 1e-4}
    if architecture == "nemotron":
        sizes |= {"norm_eps": 1e-4}
    if architecture == "gpt2":
        sizes["n_inner"] = sizes.pop("intermediate_size")
        del sizes["num_key_value_heads"]
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kinds.get(architecture, architecture), **sizes | settings)
    )
    with torch.no_grad():
        for name, weight in made.named_parameters():  # so that norms and biases matter, and logits are far apart
            middle = name.endswith("norm.weight") and architecture not in SHIFTED
            weight.copy_((torch.randn_like(weight) * (0.2 if weight.ndim > 1 else 0.3) + middle).half())
    return made.eval()


def put_on_grid(made) -> None:
    """Round the matrices to 16 steps of 1/32, from -8 to 7, of which each block of 32 has the first and the last.

    4-bit types with a minimum hold such numbers exactly, with a whole number of steps as the minimum.
    """
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim > 1:
                steps = (weight * 32).round().clip(-8, 7)
                steps[..., 0::32], steps[..., 1::32] = -8, 7
                weight.copy_(steps / 32)


def as_in_gguf(architecture: str, name: str, weight: np.ndarray, config) -> np.ndarray:
    """A weight by its name in GGUF, changed as llama.cpp's converter changes it."""
    if architecture == "llama" and (".attn_q" in name or ".attn_k" in name):  # its rotary embedding pairs neighbours
        heads = config.num_attention_heads if ".attn_q" in name else config.num_key_value_heads
        weight = weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    if architecture in SHIFTED and name.endswith("norm.weight"):
        weight = weight + 1
    if "shortconv.conv" in name:
        weight = weight[:, 0]
    if (
        architecture == "gpt2"
        and any(part in name for part in ("attn_qkv", "attn_output", "ffn_"))
        and weight.ndim == 2
    ):
        weight = weight.T
    if "ffn_gate_inp_shexp" in name:
        weight = weight[0]
    return weight


def tensors(architecture: str, made) -> dict[str, np.ndarray]:
    """The network's weights by their names in GGUF."""
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names, found = gguf.get_tensor_name_map(arch, made.config.num_hidden_layers), {}
    for name, tensor in made.state_dict().items():
        weight = tensor.detach().float().numpy()
        stem, _, suffix = name.rpartition(".")
        if name.endswith("experts.gate_up_proj"):  # [experts, 2 * inner, hidden]
            block = name.split(".")[2]
            gate, up = np.split(weight, 2, axis=1)
            found |= {f"blk.{block}.ffn_gate_exps.weight": gate, f"blk.{block}.ffn_up_exps.weight": up}
        elif name.endswith("experts.down_proj"):
            found[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = weight
        elif name == "lm_head.weight" and made.config.tie_word_embeddings:
            continue
        else:
            own = f"{names.get_name(stem)}.{suffix}"
            found[own] = as_in_gguf(architecture, own, weight, made.config)
    return {name: np.ascontiguousarray(weight) for name, weight in found.items()}


def write(
    file: Path,
    architecture: str,
    made,
    vocabulary: Callable[[gguf.GGUFWriter], None],
    quantization: str = "F32",
    extra: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> dict[str, np.ndarray]:
    """Write a network as a GGUF file; returns the values of its quantized tensors by name in GGUF.

    vocabulary, extra: add keys to the writer.
    """
    config = made.config
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    inner = getattr(config, "intermediate_size", None) or config.n_inner
    writer.add_feed_forward_length(inner)
    writer.add_head_count(config.num_attention_heads)
    writer.add_file_type({"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15}.get(quantization, 1))
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    names = ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    epsilon = next(getattr(config, name) for name in names if hasattr(config, name))
    if architecture in ("gpt2", "starcoder2", "stablelm", "nemotron"):
        writer.add_layer_norm_eps(epsilon)
    else:
        writer.add_layer_norm_rms_eps(epsilon)
    if architecture == "lfm2":  # a layer with a convolution has no heads
        counts = [config.num_key_value_heads * (kind == "full_attention") for kind in config.layer_types]
        writer.add_head_count_kv(counts)
        writer.add_shortconv_l_cache(config.conv_L_cache)
    elif architecture != "gpt2":
        writer.add_head_count_kv(config.num_key_value_heads)
    if architecture != "gpt2":
        parameters = config.rope_parameters
        parameters = parameters.get("full_attention", parameters)
        writer.add_rope_freq_base(parameters["rope_theta"])
        writer.add_rope_dimension_count(int(head * parameters.get("partial_rotary_factor", 1)))
    if head * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head)
        writer.add_value_length(head)
    if hasattr(config, "num_experts"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    vocabulary(writer)
    extra(writer)
    values = {}
    for name, weight in tensors(architecture, made).items():
        kind = tensor_type(name, weight, quantization)
        if kind in PACKED:
            packed, values[name] = PACKED[kind](weight)
        else:
            packed = gguf.quantize(weight, kind)
            values[name] = gguf.dequantize(packed, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def tensor_type(name: str, weight: np.ndarray, quantization: str) -> gguf.GGMLQuantizationType:
    """The type of a tensor: vectors stay in float32; Q4_K_M mixes two types."""
    if weight.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    if quantization == "Q4_K_M":
        better = any(part in name for part in ("attn_v", "ffn_down", "output.weight", "token_embd"))
        quantization = "Q6_K" if better else "Q4_K"
    return gguf.GGMLQuantizationType[quantization]


def byte_level_vocabulary(tokenizer: Tokenizer, pre: str | None) -> Callable[[gguf.GGUFWriter], None]:
    """Adds the vocabulary of a byte-level BPE, with only those optional keys that Qwen2.5's files have."""

    def add(writer: gguf.GGUFWriter) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        writer.add_tokenizer_model("gpt2")
        if pre:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([CONTROL if token in SPECIAL else NORMAL for token in tokens])
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(0)
        writer.add_add_bos_token(False)
        writer.add_chat_template(TEMPLATE)

    return add


def sentencepiece_vocabulary(tokens, scores, kinds) -> Callable[[gguf.GGUFWriter], None]:
    """Adds a SentencePiece vocabulary and none of the optional keys."""

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(kinds)

    return add


# --- Blocks that the package gguf reads and cannot write -----------------------------------------------------------


def pack_q4_k(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q4_K: 8 groups of 32 in a block of 256, each with a scale and a minimum of 6 bits; returns bytes and values.

    A block has d and dmin (float16), 12 bytes of scales and minima, 128 bytes of values: of 64 neighbours the first 32
    are low nibbles, the others high ones. The largest scale and minimum are 32, a power of two.
    """
    groups = weight.reshape(-1, 8, 32).astype(np.float32)
    low, span = np.minimum(groups.min(-1), 0), groups.max(-1) - np.minimum(groups.min(-1), 0)
    d = (span.max(-1, keepdims=True) / 15 / 32).astype(np.float16)
    dmin = (-low.min(-1, keepdims=True) / 32).astype(np.float16)
    scale = np.round(span / 15 / d).clip(1, 63).astype(np.uint8)  # [blocks, 8]
    minimum = np.round(-low / np.where(dmin == 0, 1, dmin)).clip(0, 63).astype(np.uint8)
    step = d.astype(np.float32) * scale
    offset = dmin.astype(np.float32) * minimum
    q = np.round((groups + offset[..., None]) / step[..., None]).clip(0, 15).astype(np.uint8)
    values = step[..., None] * q - offset[..., None]
    first, second = np.split(scale, 2, 1), np.split(minimum, 2, 1)
    scales = np.concatenate(
        [
            first[0] | (first[1] >> 4) << 6,
            second[0] | (second[1] >> 4) << 6,
            first[1] & 15 | (second[1] & 15) << 4,
        ],
        1,
    )
    pairs = q.reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    blocks = np.concatenate([d.view(np.uint8), dmin.view(np.uint8), scales, nibbles], 1)
    return blocks.reshape(*weight.shape[:-1], -1), values.reshape(weight.shape)


def pack_q6_k(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q6_K: 16 groups of 16 in a block of 256, each with a scale of 8 bits; returns bytes and values.

    A block has 128 bytes of low nibbles, 64 of upper pairs of bits, 16 scales (int8) and d (float16). In each half of
    128 values, byte i of the 64 low ones holds values i and i + 64; byte i of the 32 upper ones holds i, i + 32, i + 64
    and i + 96.
    """
    groups = weight.reshape(-1, 16, 16).astype(np.float32)
    largest = np.abs(groups).max(-1)
    d = (largest.max(-1, keepdims=True) / 31 / 64).astype(np.float16)
    scale = np.round(largest / 31 / d).clip(1, 127).astype(np.int8)
    step = d.astype(np.float32) * scale
    q = np.round(groups / step[..., None]).clip(-32, 31).astype(np.int8)
    values = step[..., None] * q
    halves = (q + 32).astype(np.uint8).reshape(-1, 2, 128)
    low = (halves[..., :64] & 15 | (halves[..., 64:] & 15) << 4).reshape(-1, 128)
    quarters = (halves >> 4).reshape(-1, 2, 4, 32)
    upper = quarters[:, :, 0] | quarters[:, :, 1] << 2 | quarters[:, :, 2] << 4 | quarters[:, :, 3] << 6
    blocks = np.concatenate([low, upper.reshape(-1, 64), scale.view(np.uint8), d.view(np.uint8)], 1)
    return blocks.reshape(*weight.shape[:-1], -1), values.reshape(weight.shape)


PACKED = {gguf.GGMLQuantizationType.Q4_K: pack_q4_k, gguf.GGMLQuantizationType.Q6_K: pack_q6_k}
