"""The training loop: it learns, repeats, goes on where it was stopped, and keeps its state whole."""

import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from utils.training import loop


def train(path, steps=30, seed=0, seen=None, **kind):
    """A line learns y = 2 x - 1 from points that `rng` draws; returns its weight and bias."""
    torch.manual_seed(0)
    line = nn.Linear(1, 1)

    def loss(step: int, rng: np.random.Generator):
        x = torch.from_numpy(rng.standard_normal((64, 1)).astype(np.float32))
        if seen is not None:
            seen.append((step, float(x[0])))
        return {"loss": (line(x) - (2 * x - 1)).square().mean()} | {key: torch.tensor(v) for key, v in kind.items()}

    loop.optimise(path, line, loss, steps=steps, rate=0.1, seed=seed)
    return torch.cat([line.weight.detach().flatten(), line.bias.detach()])


def test_it_learns_and_says_so(tmp_path, capsys):
    assert train(tmp_path / "line.pt", 200, extra=0.25) == pytest.approx([2, -1], abs=0.02)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["line 100/200", "line 200/200"]
    assert "extra 0.2500" in lines[0]


def test_a_run_repeats_and_another_seed_draws_otherwise(tmp_path):
    first, again, other = [], [], []
    weights = [train(tmp_path / f"{k}.pt", seen=seen) for k, seen in enumerate((first, again))]
    train(tmp_path / "other.pt", seed=1, seen=other)
    assert first == again and torch.equal(*weights)
    assert len({x for _, x in first}) == 30 and not {x for _, x in first} & {x for _, x in other}


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    whole = train(tmp_path / "whole.pt", 30)
    pace = loop.learning_rate_factor
    monkeypatch.setattr(loop, "learning_rate_factor", lambda step, steps: pace(step, 30))
    train(tmp_path / "line.pt", 12)
    seen = []
    assert torch.allclose(train(tmp_path / "line.pt", 30, seen=seen), whole, atol=1e-6)
    assert [step for step, _ in seen] == list(range(12, 30))
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".partial"] == []


@pytest.mark.parametrize(("faster", "dtype"), [("BF16", torch.bfloat16), ("FP32", torch.float32)])
def test_half_is_bf16_only_where_it_is_faster(faster, dtype, monkeypatch):
    monkeypatch.setattr(loop, "torch_precision", lambda: faster)
    with loop.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def learn_to_rotate(path, steps, matrices=True):
    """Two layers learn a rotation; the layers and the errors of all steps."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    wanted, errors = torch.linalg.qr(torch.randn(8, 8))[0], []

    def loss(step: int, rng: np.random.Generator):
        x = torch.from_numpy(rng.standard_normal((64, 8)).astype(np.float32))
        error = (layers(x) - x @ wanted).square().mean()
        errors.append(error.item())
        return {"loss": error}

    muon = [layer.weight for layer in layers] if matrices else []
    loop.optimise(path, layers, loss, steps=steps, rate=0.01, muon=muon)
    return layers, errors


def test_muon_moves_the_matrices_it_is_given_and_adamw_the_others(tmp_path):
    (first, start), (_, errors) = (learn_to_rotate(tmp_path / f"{steps}.pt", steps) for steps in (1, 300))
    by_adamw, _ = learn_to_rotate(tmp_path / "adamw.pt", 1, matrices=False)
    assert torch.equal(first[0].bias, by_adamw[0].bias) and not torch.equal(first[0].weight, by_adamw[0].weight)
    assert errors[-1] < 0.2 * start[0]


def test_matrices_are_those_of_hidden_layers():
    still = nn.Linear(3, 4).requires_grad_(False)
    layers = nn.ModuleList([nn.Embedding(5, 8), nn.Conv1d(8, 8, 3), nn.LayerNorm(8), nn.Linear(8, 1), still])
    both = nn.ModuleDict({"layers": layers, "attention": nn.MultiheadAttention(8, 2)})
    found = loop.matrices(both["layers"], both["attention"])
    assert [tuple(x.shape) for x in found] == [(8, 8, 3), (24, 8), (8, 8)]


def test_a_stopped_run_with_muon_goes_on_as_if_it_had_not(tmp_path, monkeypatch):
    _, whole = learn_to_rotate(tmp_path / "whole.pt", 30)
    pace = loop.learning_rate_factor
    monkeypatch.setattr(loop, "learning_rate_factor", lambda step, steps: pace(step, 30))
    learn_to_rotate(tmp_path / "part.pt", 12)
    assert learn_to_rotate(tmp_path / "part.pt", 30)[1] == pytest.approx(whole[12:], rel=1e-4)


def test_the_pace_warms_up_and_comes_down():
    paces = [loop.learning_rate_factor(step, 1000) for step in range(1000)]
    assert paces[0] < 0.02 and max(paces) == pytest.approx(1, abs=0.03) and paces[-1] < 0.03
    assert 90 <= int(np.argmax(paces)) <= 110


FAULTS = """
import resource
import numpy as np
from utils.training.loop import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.full(8_000_000, 1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults())
keep_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_freed_memory_is_kept():
    output = subprocess.run(
        [sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout
    given_back, kept = map(int, output.split())
    assert kept < given_back / 10
