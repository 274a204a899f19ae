"""Muon: an optimizer for the matrices and kernels of hidden layers, which learn from it in fewer steps than from AdamW.

torch.optim.Muon always computes in BF16, dozens of times slower where the processor has none; this one computes in the
precision of the parameters, all matrices of one shape at once. Source: K. Jordan et al., "Muon: An optimizer for hidden
layers in neural networks", 2024.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = 3.4445, -4.775, 2.0315  # of the polynomial: singular values of 0 to 1 come near 1 in five rounds
ROUNDS = 5
RMS = 0.2  # of an update at a rate of 1: AdamW's, so that rates and decay mean the same


class Muon(torch.optim.Optimizer):
    """Moves matrices [rows, columns] by their momentum made orthogonal (Nesterov's), with decoupled weight decay.

    Kernels of convolutions [out, in, ...] count as matrices of `out` rows.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 1e-2
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            alike = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[matrix.shape].append(matrix)
            for shape, matrices in alike.items():
                wanted = torch.stack([self._momentum(matrix, group["momentum"]).flatten(1) for matrix in matrices])
                moves = orthogonal(wanted) * RMS * max(wanted.shape[1:]) ** 0.5
                for matrix, move in zip(matrices, moves.unflatten(2, shape[1:]), strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(move, alpha=group["lr"])

    def _momentum(self, matrix: Tensor, share: float) -> Tensor:
        """The gradient, and what has gathered with it."""
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        gathered = state["momentum"].mul_(share).add_(matrix.grad)
        return matrix.grad + share * gathered


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [n, rows, columns] with their singular values brought near 1 (0.7 to 1.2): Newton and Schulz's way."""
    a, b, c = COEFFICIENTS
    rows, columns = matrices.shape[1:]
    x = matrices.mT if rows > columns else matrices  # the products are of the shorter side
    x = x / x.flatten(1).norm(dim=1).clamp_min(1e-7)[:, None, None]
    for _ in range(ROUNDS):
        squares = x @ x.mT
        x = a * x + (b * squares + c * squares @ squares) @ x
    return x.mT if rows > columns else x
