"""Small random checkpoints of both versions, with tokenizers, for the tests of this notebook."""

import json
import string
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from notebooks.minicpm_v.network import MiniCPMV

SIDE = 56  # pixels, of pictures that stay whole
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>"]
SPECIAL += ["<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]  # one for every byte
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "model_type": "minicpmv",
    "vocab_size": len(TOKENS),
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "query_num": 4,
    "drop_vision_last_layer": True,
}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 14,
}
CONFIGS = {
    2.6: SIZES
    | {
        "version": 2.6,
        "num_key_value_heads": 2,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "slice_config": {"max_slice_nums": 9, "patch_size": 14, "scale_resolution": SIDE},
        "vision_config": VISION | {"image_size": 336, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
        "eos_token_id": 2,
    },
    2.0: SIZES
    | {
        "rms_norm_eps": 1e-5,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 64,
        "max_slice_nums": 9,
        "scale_resolution": SIDE,
        "patch_size": 14,
        "vision_config": VISION,
        "eos_token_id": 4,
    },
}


def tokenizer(version: float) -> PreTrainedTokenizerFast:
    """A tokenizer of TOKENS."""
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    ends = {"eos_token": "<|im_end|>"} if version == 2.6 else {"bos_token": "<s>", "eos_token": "</s>"}
    made = PreTrainedTokenizerFast(
        tokenizer_object=bpe, unk_token="<unk>", pad_token="<|endoftext|>", additional_special_tokens=SPECIAL, **ends
    )
    made.chat_template = CHATML if version == 2.6 else None
    return made


def weights(config: dict, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights, large enough for every input to matter; answers are of ASCII letters until they end."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for key, tensor in MiniCPMV(config).state_dict().items():
        drawn = torch.randn(tensor.shape, generator=generator)
        if key == "resampler.pos_embed":
            found[key] = tensor.clone()  # a formula
            continue
        if tensor.ndim > 1:
            found[key] = drawn / (tensor.numel() / tensor.shape[0]) ** 0.5
        else:
            found[key] = 0.05 * drawn + key.endswith("weight")
        if key == "llm.lm_head.weight":
            said = [config["eos_token_id"], *(TOKENS.index(letter) for letter in string.ascii_letters)]
            found[key] = 6 * found[key] * torch.zeros(len(TOKENS), 1).index_fill(0, torch.tensor(said), 1)
    return found


def checkpoint(folder: Path, version: float = 2.6, dtype=torch.float32, empty: bool = False, **changes) -> Path:
    """Write a checkpoint folder like the authors'; `empty`: one number in each tensor, only its size matters."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[version] | changes
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer(version).save_pretrained(folder)
    if empty:
        with torch.device("meta"):
            shapes = [(key, tensor.shape) for key, tensor in MiniCPMV(config).state_dict().items()]
        tensors = {key: torch.full(shape, i + 1, dtype=dtype) for i, (key, shape) in enumerate(shapes)}
    else:
        tensors = {key: tensor.to(dtype).contiguous() for key, tensor in weights(config).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
