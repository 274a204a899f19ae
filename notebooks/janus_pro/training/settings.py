"""The configuration of the tiny network, its tokenizer, and the hyperparameters of each stage of its training."""

from __future__ import annotations

from copy import deepcopy

import torch
from transformers import JanusConfig, JanusForConditionalGeneration, PreTrainedTokenizerFast

from notebooks.janus_pro import data
from notebooks.janus_pro.data import SIDE_PX
from notebooks.janus_pro.network import PADDING
from notebooks.janus_pro.pipeline import IMAGE_TOKENS
from utils import paths
from utils.drawn_world import questions
from utils.drawn_world.scenes import COLOURS, SHAPES
from utils.training.vision_language import byte_level_bpe

TINY = paths.notebook_dir(__package__) / "tiny"
WORK = paths.training_dir(__package__)
STAGES = {  # options of `optimise`, by the names of the stages
    "vq": {"steps": 1500, "rate": 1e-3, "seed": 1},
    "seeing": {"steps": 1000, "rate": 2e-3, "seed": 2},
    "judging": {"steps": 300, "rate": 1e-3, "seed": 3},
    "naming": {"steps": 400, "rate": 1e-3, "seed": 4},
    "both": {"steps": 1800, "rate": 1.5e-3, "seed": 5},
    "duplicates": {"steps": 700, "rate": 1e-3, "seed": 6},
    "pairs": {"steps": 700, "rate": 1e-3, "seed": 7},
    "white": {"steps": 500, "rate": 3e-4, "seed": 8},
}
CHECKPOINT_SETTINGS = {  # by the names of their files
    "processor_config.json": {"system_prompt": "", "answer_separator": ":"},
    "generation_config.json": {"guidance_scale": 1.2},
}

PATCH_PX = 16  # a token of a picture, to be encoded or drawn
ROWS = SIDE_PX // PATCH_PX
TOKENS = ROWS**2  # of a picture
POINTS = 4  # of a patch, in a row and in a column, whose ground truth is known
CLASSES = (len(SHAPES) + 1, len(COLOURS) + 1)  # of a point: 0 is the background

VOCABULARY = 512
BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<|User|>", "<|Assistant|>"
SPECIAL = [BEGIN, END, PADDING, USER, ASSISTANT, *IMAGE_TOKENS]
PLACEHOLDER, BEGIN_OF_IMAGE, END_OF_IMAGE = (SPECIAL.index(token) for token in IMAGE_TOKENS)
PADDING_ID = SPECIAL.index(PADDING)
WIDTH = 256
PROJECTION = {"projection_dim": WIDTH}
CONFIG = {
    "image_token_id": PLACEHOLDER,
    "text_config": {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 320,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": SPECIAL.index(BEGIN),
        "eos_token_id": SPECIAL.index(END),
        "pad_token_id": PADDING_ID,
    },
    "vision_config": {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "mlp_ratio": 2.0,
        "image_size": SIDE_PX,
        "patch_size": PATCH_PX,
        "num_image_tokens": TOKENS,
        **PROJECTION,
    },
    "vq_config": {
        "embed_dim": 8,
        "num_embeddings": 512,
        "latent_channels": 32,
        "base_channels": 32,
        "channel_multiplier": [1, 1, 2, 2, 2],
        "num_res_blocks": 1,
        "image_token_embed_dim": WIDTH,
        **PROJECTION,
    },
}


def untrained() -> JanusForConditionalGeneration:
    """The network at the start of training, seeded."""
    torch.manual_seed(0)
    model = JanusForConditionalGeneration(JanusConfig(**deepcopy(CONFIG)))
    with torch.no_grad():  # word embeddings of a length of about one: the naming loss searches for them
        model.get_input_embeddings().weight.normal_(std=WIDTH**-0.5)
    return model


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE, as DeepSeek's, trained on the questions and the prompts."""
    texts = [*questions.corpus(), *data.corpus()]
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(texts, VOCABULARY, SPECIAL),
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PADDING,
        additional_special_tokens=[USER, ASSISTANT, *IMAGE_TOKENS],
    )
