"""Guided attention: heads that are taught which phone is being said, for training.

Attention finds out by itself what belongs together, but slowly, or never from two hours of speech. The teacher has told
when every phone is said (after Tachibana et al., ICASSP 2018, who had to suppose that all last equally long).
B: batch, H: heads, T: rows that look, P: rows that are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebooks.gpt_sovits.training.bert import IGNORED, share


class Gaze:
    """Where heads look while their layers run, in a `with` block.

    looks: the logits [B, H, T, P] of the heads that are taught, from a layer and what it is given.
    """

    def __init__(self, layers: Iterable[nn.Module], looks: Callable[..., Tensor]) -> None:
        self.layers, self.looks = list(layers), looks
        self.seen: list[Tensor] = []

    def __enter__(self) -> Gaze:
        self.hooks = [layer.register_forward_pre_hook(self._keep) for layer in self.layers]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _keep(self, layer: nn.Module, given: tuple) -> None:
        self.seen.append(self.looks(layer, *given))

    def wrong(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy of all that was seen, and how often the last layer was right.

        places: [B, T] int64, the row to look at, or IGNORED.
        """
        wanted = [places[:, None].expand(x.shape[:-1]) for x in self.seen]
        pairs = zip(self.seen, wanted, strict=True)
        wrong = [F.cross_entropy(x.float().flatten(0, -2), y.flatten(), ignore_index=IGNORED) for x, y in pairs]
        return torch.stack(wrong).mean(), share(self.seen[-1], wanted[-1])
