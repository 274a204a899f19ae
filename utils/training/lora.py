"""LoRA (Hu et al. 2021, arXiv 2106.09685): two thin matrices beside each projection of a language model are trained.

An `Adapter` computes y + B A x where the projection computes y. Its file has the names of PEFT, as
`openvino_genai.Adapter` reads them; `utils.models.lora` adds it to the weights of a checkpoint. `packed` puts many
short dialogues that begin alike into one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from utils.files import replaced
from utils.training import provenance

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
MULTIPLE = 64  # of tokens in a sequence: few lengths, so kernels and blocks of memory are used again


class Adapter(nn.Module):
    """The low-rank matrices of the linear layers of `network` whose names end with one of `projections`.

    They begin without effect. The network's own parameters are frozen, but for those of the layers named in `whole`.
    """

    def __init__(
        self, network: nn.Module, rank: int, projections: Sequence[str] = ALL, whole: Sequence[str] = ()
    ) -> None:
        super().__init__()
        network.requires_grad_(False)
        self.whole_names = whole
        self.whole = nn.ModuleList(network.get_submodule(name).requires_grad_() for name in whole)
        self.names, self.downs, self.ups = [], nn.ParameterList(), nn.ParameterList()
        for name, layer in network.named_modules():
            if name.endswith(tuple(projections)):
                down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)  # A
                up = nn.Parameter(torch.zeros(layer.out_features, rank))  # B
                layer.register_forward_hook(lambda _, x, y, down=down, up=up: y + x[0] @ down.T @ up.T)
                self.names.append(name)
                self.downs.append(down)
                self.ups.append(up)

    def tensors(self) -> dict[str, Tensor]:
        """In FP16, by PEFT's names: matrices lora_A [rank, inputs] and lora_B [outputs, rank], and whole layers."""
        named = {}
        for name, layer in zip(self.whole_names, self.whole, strict=True):
            named |= {f"base_model.model.{name}.{own}": x.half() for own, x in layer.state_dict().items()}
        for name, down, up in zip(self.names, self.downs, self.ups, strict=True):
            named[f"base_model.model.{name}.lora_A.weight"] = down.detach().half().contiguous()
            named[f"base_model.model.{name}.lora_B.weight"] = up.detach().half().contiguous()
        return named

    def save(self, path: Path) -> None:
        """Write the matrices as safetensors, with the stages of their training."""
        with replaced(path) as partial:
            save_file(self.tensors(), partial, provenance.metadata())


def packed(start: Sequence[int], branches: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, Tensor]:
    """One sequence of dialogues that all begin with the tokens `start`, which are computed once.

    branches: for each dialogue the tokens that are given after `start`, and those that are learned. Each branch sees
    `start` and itself. A last branch of zeros makes n a multiple of MULTIPLE. Returns "input_ids" and "position_ids"
    [1, n], "attention_mask" [1, 1, n, n] (True: seen), and "learned" [n], which tokens are targets.
    """
    ids, positions, branch, learned = list(start), list(range(len(start))), [0] * len(start), [False] * len(start)
    tokens = len(start) + sum(len(given) + len(target) for given, target in branches)
    for number, (given, target) in enumerate([*branches, ([0] * (-tokens % MULTIPLE), [])], 1):
        ids += [*given, *target]
        positions += range(len(start), len(start) + len(given) + len(target))
        branch += [number] * (len(given) + len(target))
        learned += [False] * len(given) + [True] * len(target)
    own = torch.tensor(branch)
    seen = (own[None] == own[:, None]) | (own[None] == 0)  # [n, n]
    return {
        "input_ids": torch.tensor([ids]),
        "position_ids": torch.tensor([positions]),
        "attention_mask": seen.tril()[None, None],
        "learned": torch.tensor(learned),
    }


def loss(network: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """The mean cross entropy of the learned tokens of a `packed` sequence, each predicted by the one before it."""
    learned = batch["learned"]
    inputs = {name: values for name, values in batch.items() if name != "learned"}
    states = network.model(**inputs, use_cache=False).last_hidden_state[0]  # [n, width]
    logits = network.lm_head(states[:-1][learned[1:]])  # [targets, vocabulary]
    return F.cross_entropy(logits.float(), batch["input_ids"][0][learned])


def chat_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a text in which the chat's marks stand already."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]
