"""Muon: an optimizer for the matrices and kernels of hidden layers, which takes fewer steps than AdamW.

torch.optim.Muon always computes in BF16, dozens of times slower where the processor has none; this one computes in a
precision of choice, all matrices of one shape at once. Source: K. Jordan et al., "Muon: An optimizer for hidden
layers in neural networks", 2024.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = 3.4445, -4.775, 2.0315  # of the polynomial: five rounds bring singular values in 0..1 near 1
ROUNDS = 5
RMS = 0.2  # of an update at learning rate 1, as with AdamW, so that rates and decays are comparable


class Muon(torch.optim.Optimizer):
    """Updates matrices [rows, columns] by their orthogonalised Nesterov momentum, with decoupled weight decay.

    Kernels of convolutions [out, in, ...] count as matrices of `out` rows. dtype: of the orthogonalisation.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 1e-2,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self) -> None:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for shape, matrices in by_shape.items():
                momenta = [self._momentum(matrix, group["momentum"]).flatten(1) for matrix in matrices]
                momenta = torch.stack(momenta)  # [n, rows, columns]
                updates = orthogonal(momenta.to(self.dtype)).to(momenta.dtype) * RMS * max(momenta.shape[1:]) ** 0.5
                updates = updates.unflatten(2, shape[1:])  # [n, rows, ...], as the parameters
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])

    def _momentum(self, matrix: Tensor, decay: float) -> Tensor:
        """The Nesterov momentum of a matrix: its gradient plus `decay` times the sum of decayed gradients."""
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        momentum = state["momentum"].mul_(decay).add_(matrix.grad)
        return matrix.grad + decay * momentum


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [n, rows, columns] with singular values near 1 (0.7 to 1.2), by a Newton-Schulz iteration."""
    a, b, c = COEFFICIENTS
    rows, columns = matrices.shape[1:]
    x = matrices.mT if rows > columns else matrices  # [n, short side, long side]
    x = x / x.flatten(1).norm(dim=1).clamp_min(1e-7)[:, None, None]
    for _ in range(ROUNDS):
        squares = x @ x.mT  # [n, short side, short side]
        x = a * x + (b * squares + c * squares @ squares) @ x
    return x.mT if rows > columns else x
