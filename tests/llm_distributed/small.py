"""Small random models of the Llama and Qwen2 kinds, cut and exported, for the tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from notebooks.llm_distributed import convert
from notebooks.llm_distributed.convert import cutting

FP32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
MULTIPLE = 16  # of MLP columns
SIZE = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 101,
    "max_position_embeddings": 256,
}
PROMPT = [1, 100, 57, 3, 50]


def checkpoint(folder: Path, kind: str = "llama") -> Path:
    """A transformers folder with random weights, large enough that greedy tokens are not near ties."""
    torch.manual_seed(0)
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SIZE, tie_word_embeddings=True))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**SIZE, tie_word_embeddings=False))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0, 0.3)
    model.half().save_pretrained(folder)
    return folder


def shares(source: Path, ranks: int, folder: Path, multiple: int = MULTIPLE) -> list[Path]:
    """The IR folders of a checkpoint's shares."""
    cutting.convert(source, {"ranks": ranks, "multiple": multiple, "source": "a test"}, folder)
    return convert.folders(folder)


@cache
def logits(source: Path, ids: tuple[int, ...]) -> np.ndarray:
    """PyTorch's logits [1, n, vocabulary] in FP32."""
    kind = {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM}
    name = json.loads((source / "config.json").read_text(encoding="utf-8"))["model_type"]
    model = kind[name].from_pretrained(source, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits.numpy()


def tokens(source: Path, ids: list[int], count: int) -> list[int]:
    """PyTorch's greedy tokens in FP32."""
    found = list(ids)
    for _ in range(count):
        found.append(int(logits(source, tuple(found))[0, -1].argmax()))
    return found[len(ids) :]
