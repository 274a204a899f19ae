"""What the trainings of vision-language models share: tokenizer, padding, losses, attention in FP32."""

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
NOWHERE = -100  # the class of a point that the loss ignores
NAME_THRESHOLD = 4.0  # a name is found where the output reaches this far along its embedding
ABSENT_PER_PRESENT = 4.0  # weight of names that are there: most are not


def byte_level_bpe(texts: Iterable[str], size: int, special: Sequence[str]) -> Tokenizer:
    """A byte-level BPE of `size` tokens, as Qwen2 and DeepSeek have it, trained on texts; special tokens come first."""
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
    """A batch of rows, padded at their ends: "ids", token ids [n, tokens], and "learned", which of them are targets.

    rows: token ids, and for each of them whether it is a target (1) or given (0).
    """
    ids = pad_sequence([torch.tensor(tokens) for tokens, _ in rows], True, padding)  # [n, tokens]
    learned = pad_sequence([torch.tensor(targets, dtype=torch.bool) for _, targets in rows], True)  # [n, tokens]
    return {"ids": ids, "learned": learned}


def point_cross_entropy(logits: Tensor, truth: Tensor, classes: Sequence[int]) -> Tensor:
    """Sum of the mean cross entropies of several kinds of classes at points.

    logits: [..., sum(classes)]. truth: [..., kinds]; class 0, the background, has a weight of 0.1, NOWHERE is ignored.
    classes: how many each kind has.
    """
    losses = []
    for scores, target, count in zip(logits.split(list(classes), -1), truth.unbind(-1), classes, strict=True):
        weight = scores.new_tensor([0.1] + [1.0] * (count - 1))
        losses.append(F.cross_entropy(scores.flatten(0, -2), target.flatten(), weight, ignore_index=NOWHERE))
    return sum(losses)


def naming_loss(output: Tensor, words: Tensor, names: Tensor, present: Tensor, where: Tensor | None = None) -> Tensor:
    """Binary cross entropy of finding names in an output: one is found where its word embedding is contained.

    output: [..., D]. words: [vocabulary, D], embeddings of length 1. names: [k] token ids. present: [..., k], 1 for the
    names to be found. where: [...] bool, which positions count; None: all.
    """
    logits = output @ words[names].T - NAME_THRESHOLD  # [..., k]
    if where is not None:
        logits, present = logits[where], present[where]  # [positions, k]
    return F.binary_cross_entropy_with_logits(logits, present, pos_weight=logits.new_tensor(ABSENT_PER_PRESENT))


def attend_in_fp32(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask, **options) -> tuple:
    """Attention of transformers, in FP32: the backward pass of the fused kernel is slower in BF16."""
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **options)


AttentionInterface.register(FP32_ATTENTION, attend_in_fp32)
AttentionMaskInterface.register(FP32_ATTENTION, sdpa_mask)
