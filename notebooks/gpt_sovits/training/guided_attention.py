"""Guided attention: an extra loss that teaches attention heads which phoneme is spoken.

Attention learns the alignment by itself, but slowly, or not at all from two hours of speech. The teacher knows when
every phoneme is spoken, so the loss is a cross entropy (after Tachibana et al., ICASSP 2018, who had to suppose that
all phonemes are equally long). B: batch, H: heads, T: rows of queries, P: rows of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebooks.gpt_sovits.training.labels import IGNORED, accuracy


class GuidedAttention:
    """Collects the attention logits of layers while these run in its `with` block.

    attention_logits: a function of a layer and its inputs, which returns the logits [B, H, T, P] of the guided heads.
    """

    def __init__(self, layers: Iterable[nn.Module], attention_logits: Callable[..., Tensor]) -> None:
        self.layers, self.attention_logits = list(layers), attention_logits
        self.logits: list[Tensor] = []  # [B, H, T, P] of every layer

    def __enter__(self) -> GuidedAttention:
        self.hooks = [layer.register_forward_pre_hook(self._collect) for layer in self.layers]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _collect(self, layer: nn.Module, inputs: tuple) -> None:
        self.logits.append(self.attention_logits(layer, *inputs))

    def loss_and_accuracy(self, alignment: Tensor) -> tuple[Tensor, Tensor]:
        """The mean cross entropy of all layers, and the accuracy of the last one.

        alignment: [B, T] int64, the row of keys that each row of queries should attend to, or IGNORED.
        """
        labels = [alignment[:, None].expand(logits.shape[:-1]) for logits in self.logits]  # [B, H, T] each
        losses = [
            F.cross_entropy(logits.float().flatten(0, -2), label.flatten(), ignore_index=IGNORED)
            for logits, label in zip(self.logits, labels, strict=True)
        ]
        return torch.stack(losses).mean(), accuracy(self.logits[-1], labels[-1])
