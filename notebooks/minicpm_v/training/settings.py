"""The configuration of the tiny network, its tokenizer, and the hyperparameters of each stage of its training."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast

from notebooks.minicpm_v.data import SIDE_PX
from notebooks.minicpm_v.network import MiniCPMV
from notebooks.minicpm_v.pipeline.slicing import sincos_positions
from utils import paths
from utils.drawn_world import questions
from utils.drawn_world.scenes import COLOURS, LETTERS, SHAPES
from utils.training.vision_language import byte_level_bpe

TINY = paths.notebook_dir(__package__) / "tiny"
WORK = paths.training_dir(__package__)
STAGES = {  # options of `optimise`, by the names of the stages
    "seeing": {"steps": 1200, "rate": 2e-3, "seed": 1},
    "reading": {"steps": 2200, "rate": 1.5e-3, "seed": 4},
    "judging": {"steps": 300, "rate": 1e-3, "seed": 5},
    "naming": {"steps": 300, "rate": 1e-3, "seed": 6},
    "small": {"steps": 1300, "rate": 1.5e-3, "seed": 2},
    "large": {"steps": 2000, "rate": 1.2e-3, "seed": 3},
    "mixed": {"steps": 700, "rate": 5e-4, "seed": 7},
    "balanced": {"steps": 600, "rate": 5e-4, "seed": 8},
}

PATCH_PX = 14
CLASSES = (len(SHAPES) + 1, len(COLOURS) + 1, len(LETTERS) + 1)  # of a point: 0 is the background
GRID = 8  # rows and columns of places that the queries of the resampler attend to
PLACES = torch.stack([torch.arange(GRID).repeat_interleave(GRID), torch.arange(GRID).repeat(GRID)], 1)  # [queries, 2]

VOCABULARY = 512
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "<image>", "</image>", "<slice>", "</slice>",
    "<image_id>", "</image_id>",
]  # fmt: skip
PADDING_ID = SPECIAL.index("<|endoftext|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["MiniCPMV"],
    "model_type": "minicpmv",
    "version": 2.6,
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "query_num": 64,
    "answer_separator": ":",  # between the reasoning and the answer, which the questions of training have
    "image_size": 336,
    "patch_size": 14,
    "drop_vision_last_layer": True,
    "slice_mode": True,
    "use_image_id": True,
    "slice_config": {
        "max_slice_nums": 9,
        "patch_size": 14,
        "scale_resolution": SIDE_PX,
        "model_type": "minicpmv",
    },
    "vision_config": {
        "model_type": "siglip",
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "image_size": 336,
        "patch_size": 14,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE, as Qwen2's, trained on the questions. Capital letters are single tokens: words are spelled."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(questions.corpus(), VOCABULARY, SPECIAL),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<unk>",
        additional_special_tokens=[token for token in SPECIAL if token not in ("<|im_end|>", "<|endoftext|>", "<unk>")],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def untrained() -> MiniCPMV:
    """The network at the start of training, seeded."""
    torch.manual_seed(0)
    model = MiniCPMV(CONFIG)
    init_resampler(model)
    init_embeddings(model)
    return model


def init_resampler(model: MiniCPMV) -> None:
    """Initialise the resampler so that each query attends to one place of a grid."""
    width = CONFIG["hidden_size"]
    places = torch.from_numpy(sincos_positions(GRID, GRID, width)).reshape(-1, width)  # [queries, D]
    # only high frequencies distinguish neighbours; they come first in each quarter: sine and cosine, across and down
    frequency_weights = torch.exp(-torch.arange(width // 4) / 6).repeat(4)  # [D]
    # each head gets every other frequency
    order = torch.cat([torch.arange(width)[head :: width // 128] for head in range(width // 128)])
    projection = torch.diag(frequency_weights * 7)[order]  # [D, D]
    with torch.no_grad():
        model.resampler.query.copy_(places)
        model.resampler.attn.in_proj_weight[:width].copy_(projection)
        model.resampler.attn.in_proj_weight[width : 2 * width].copy_(projection)
        model.resampler.ln_kv.weight.fill_(0.2)
        model.resampler.attn.in_proj_weight[2 * width :].mul_(5)


def init_embeddings(model: MiniCPMV) -> None:
    """Initialise the word embeddings with a length of about one: the naming loss searches for them."""
    with torch.no_grad():
        model.llm.get_input_embeddings().weight.normal_(std=CONFIG["hidden_size"] ** -0.5)
