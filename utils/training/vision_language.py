"""What the trainings of models that see and speak share: tokens, padding, what is at the points of a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

FP32_ATTENTION = "fp32"  # for `set_attn_implementation`
NOWHERE = -100  # the class of a point that nobody asks about


def byte_level_bpe(texts: Iterable[str], size: int, special: Sequence[str]) -> Tokenizer:
    """A byte-level BPE of `size` tokens, as those of Qwen2 and DeepSeek are, learned from texts; special tokens are its
    first ones."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    return bpe


def padded(rows: Sequence[tuple[Sequence[int], Sequence[int]]], padding: int) -> dict[str, Tensor]:
    """Token ids [n, tokens], and what of them is to be learned (bool), of rows side by side, padded at their ends."""
    ids = pad_sequence([torch.tensor(tokens) for tokens, _ in rows], True, padding)
    return {"ids": ids, "learned": pad_sequence([torch.tensor(wanted, dtype=torch.bool) for _, wanted in rows], True)}


def pointed(logits: Tensor, truth: Tensor, classes: Sequence[int]) -> Tensor:
    """Sum of the cross-entropies of so many kinds of classes [..., c] at points [..., kinds]; background, class 0,
    counts a tenth, and NOWHERE nothing."""
    total = logits.new_zeros(())
    for scores, wanted in zip(logits.split(list(classes), -1), truth.unbind(-1), strict=True):
        weight = (torch.where(wanted > 0, 1.0, 0.1) * (wanted != NOWHERE)).flatten()
        errors = F.cross_entropy(scores.flatten(0, -2), wanted.flatten(), reduction="none", ignore_index=NOWHERE)
        total = total + (errors * weight).sum() / weight.sum()
    return total


def attend_in_fp32(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask, **options) -> tuple:
    """Attention of transformers, in FP32: in BF16 the fused kernel's way back takes longer."""
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **options)


AttentionInterface.register(FP32_ATTENTION, attend_in_fp32)
AttentionMaskInterface.register(FP32_ATTENTION, sdpa_mask)
