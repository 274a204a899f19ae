"""Small random checkpoints in both spellings, with a tokenizer, for the tests of this notebook."""

import json
import string
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import JanusConfig, JanusForConditionalGeneration, PreTrainedTokenizerFast

SPECIAL = ["<bos>", "<eos>", "<pad>", "<unk>", "<image_placeholder>", "<begin_of_image>", "<end_of_image>"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]  # one for every byte
WIDTH = 64
TOWER = {  # as wide as a code: the two aligners take inputs of one size
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 16,
    "num_image_tokens": 16,
}
AUTOENCODER = {
    "embed_dim": 16,
    "num_embeddings": 96,
    "latent_channels": 32,
    "base_channels": 32,
    "channel_multiplier": [1, 1, 2, 2, 4],
    "num_res_blocks": 1,
}
TEXT = {
    "model_type": "llama",
    "vocab_size": len(TOKENS),
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
WIDE = {"projection_dim": WIDTH}
CONFIG = JanusConfig(
    text_config=TEXT,
    vision_config=TOWER | WIDE,
    vq_config=AUTOENCODER | WIDE | {"image_token_embed_dim": WIDTH},
    image_token_id=TOKENS.index("<image_placeholder>"),
)
AUTHORS = {  # the same as their config.json; a test adds the two names
    "model_type": "multi_modality",
    "vision_config": {"cls": "CLIPVisionTower", "params": {"model_name": "small", "image_size": 64}},
    "gen_vision_config": {"cls": "small", "params": {"image_token_size": 96, "n_embed": 16}},
    "language_config": TEXT | {"torch_dtype": "bfloat16", "_attn_implementation": "eager"},
}


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of TOKENS."""
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    ends = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, additional_special_tokens=SPECIAL[4:], **ends)


@cache
def weights() -> dict[str, torch.Tensor]:
    """Random weights, large enough for every input to matter; answers are of ASCII letters until they end."""
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = {key: x.shape for key, x in JanusForConditionalGeneration(CONFIG).state_dict().items()}
    found = {}
    for key, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator)
        if len(shape) > 1:
            found[key] = drawn / (drawn.numel() / shape[0]) ** 0.5
        else:
            found[key] = 0.05 * drawn + key.endswith("weight")
    found["model.generation_head.vision_head.weight"] *= 2
    found["model.aligner.hidden_layers.0.weight"] *= 6
    said = torch.tensor([TOKENS.index(letter) for letter in string.ascii_letters])
    spoken = torch.zeros(len(TOKENS), 1).index_fill(0, said, 6)
    spoken[TOKENS.index("<eos>")] = 3
    found["lm_head.weight"] *= spoken
    return found


def companions(folder: Path, config: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer().save_pretrained(folder)


def checkpoint(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write a checkpoint folder as transformers does."""
    companions(folder, CONFIG.to_dict())
    (folder / "processor_config.json").write_text('{"system_prompt": "Look.\\n\\n"}', encoding="utf-8")
    tensors = {key: x.to(dtype).contiguous() for key, x in weights().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def authors_weights() -> dict[str, torch.Tensor]:
    """The same weights under the names of the authors, and some that only they have."""
    mapping = json.loads((Path(__file__).parents[1] / "oracles" / "janus" / "mapping.json").read_text(encoding="utf-8"))
    own, found = dict(weights()), {}
    for theirs, ours in mapping.items():
        names = ours if isinstance(ours, list) else [ours]
        if own.keys() >= set(names):
            found[theirs] = torch.cat([own.pop(name) for name in names])
    assert not own
    found["vision_model.vision_tower.pos_embed"] = found["vision_model.vision_tower.pos_embed"][None]
    unused = {"vision_model.vision_tower.attn_pool.q.bias": 16, "gen_vision_model.quantize.codebook_used": 65536}
    return found | {key: torch.zeros(size) for key, size in unused.items()}


def authors_checkpoint(folder: Path, dtype: torch.dtype = torch.bfloat16, files: int = 1) -> Path:
    """Write a checkpoint folder as the authors do, in one file or several with their index."""
    companions(folder, AUTHORS)
    tensors = {key: x.to(dtype) for key, x in authors_weights().items()}
    if files == 1:
        torch.save(tensors, folder / "pytorch_model.bin")
        return folder
    where = {key: f"pytorch_model-{1 + n % files:05}-of-{files:05}.bin" for n, key in enumerate(tensors)}
    for name in set(where.values()):
        torch.save({key: x for key, x in tensors.items() if where[key] == name}, folder / name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}), encoding="utf-8")
    return folder
