"""The optimizer of hidden layers: its moves are orthogonal, as long as AdamW's, and wait for nobody's gradient."""

import pytest
import torch
from torch import nn

from utils.training import muon


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16)])
def test_singular_values_come_near_one(shape, dtype):
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(3, *shape), full_matrices=False)
    values = torch.linspace(0.05, 5, left.shape[-1])  # two powers of ten apart
    found = torch.linalg.svdvals(muon.orthogonal((left * values @ right).to(dtype)).float())
    assert found.min() > 0.6 and found.max() < 1.3


def test_a_matrix_keeps_its_directions():
    torch.manual_seed(0)
    matrix = torch.randn(16, 40)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.linalg.norm(muon.orthogonal(matrix[None])[0] - left @ right) < 0.35 * torch.linalg.norm(left @ right)


def test_a_move_is_as_long_as_one_of_adamw():
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.zeros(64, 128))
    matrix.grad = 1e-3 * torch.randn(64, 128)
    muon.Muon([matrix], lr=0.01).step()
    assert matrix.detach().square().mean().sqrt().item() == pytest.approx(0.01 * muon.RMS, rel=0.3)


def test_bf16_moves_nearly_as_fp32():
    torch.manual_seed(0)
    start, gradient = torch.zeros(64, 128), torch.randn(64, 128)
    moved = []
    for dtype in (torch.float32, torch.bfloat16):
        matrix = nn.Parameter(start.clone())
        matrix.grad = gradient
        muon.Muon([matrix], lr=0.01, dtype=dtype).step()
        moved.append(matrix.detach())
    assert moved[1].dtype == torch.float32
    assert 0 < torch.linalg.norm(moved[1] - moved[0]) < 0.05 * torch.linalg.norm(moved[0])


def test_momentum_goes_on_where_gradients_stop_to_point():
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.zeros(8, 8))
    optimizer = muon.Muon([matrix], lr=0.1, weight_decay=0)
    matrix.grad = torch.randn(8, 8)
    optimizer.step()
    first = matrix.detach().clone()
    matrix.grad = torch.zeros(8, 8)
    optimizer.step()
    assert nn.functional.cosine_similarity(first.flatten(), (matrix.detach() - first).flatten(), dim=0) > 0.99


def test_matrices_without_gradient_stay_and_others_decay():
    still, moved = (nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    moved.grad = torch.zeros(4, 4)
    muon.Muon([still, moved], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(still.detach(), torch.ones(4, 4))
    assert torch.allclose(moved.detach(), torch.full((4, 4), 0.95))


def test_a_kernel_moves_as_the_matrix_of_its_outputs():
    torch.manual_seed(0)
    matrix, kernel = nn.Parameter(torch.zeros(8, 36)), nn.Parameter(torch.zeros(8, 4, 3, 3))
    matrix.grad = torch.randn(8, 36)
    kernel.grad = matrix.grad.reshape(8, 4, 3, 3)
    muon.Muon([matrix, kernel], lr=0.1).step()
    assert matrix.detach().abs().max() > 0 and torch.allclose(kernel.detach().flatten(1), matrix.detach())
