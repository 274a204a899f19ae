"""Training of the tiny checkpoints: a loop that saves its state and goes on from there, and BF16 where that is safe."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from math import cos, pi
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from utils.bench import torch_precision
from utils.files import replaced
from utils.training.muon import Muon

SAVE_EVERY = 250  # steps
BOLDER = 2.0  # times AdamW's rate is Muon's


def optimise(
    path: Path,
    network: nn.Module,
    loss: Callable[[int, np.random.Generator], dict[str, Tensor]],
    *,
    steps: int,
    rate: float,
    seed: int = 0,
    muon: Iterable[nn.Parameter] = (),
) -> None:
    """Minimise what `loss(step, rng)` gives under "loss" over `steps` steps; the other values are printed, too.

    AdamW at `rate`, which a hundred steps warm up to and half a cosine leads down from; Muon for parameters in
    `muon`, which are `matrices` of hidden layers. The state is kept in `path`, and a run that was stopped goes on from
    it. What is drawn from `rng` is a function of `seed` and the step.
    """
    keep_memory()
    learned = [p for p in network.parameters() if p.requires_grad]
    hidden = {id(matrix): matrix for matrix in muon}
    others = [p for p in learned if id(p) not in hidden]
    optimizers = [(torch.optim.AdamW(others, rate, betas=(0.9, 0.98), weight_decay=1e-2), rate)]
    if hidden:
        optimizers.append((Muon(hidden.values(), BOLDER * rate), BOLDER * rate))
    begun = 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        network.load_state_dict(state["network"])
        for (optimizer, _), kept in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        begun = state["step"]
    network.train()
    start, seen = perf_counter(), []
    for step in range(begun, steps):
        parts = loss(step, np.random.default_rng([seed, step]))
        network.zero_grad()
        parts["loss"].backward()
        nn.utils.clip_grad_norm_(learned, 1.0)
        for optimizer, fastest in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = fastest * pace(step, steps)
            optimizer.step()
        seen.append({key: float(x.detach()) for key, x in parts.items()})
        if step % 100 == 99:
            keys = dict.fromkeys(key for parts in seen for key in parts)
            means = ", ".join(f"{key} {np.mean([x[key] for x in seen if key in x]):.4f}" for key in keys)
            print(f"{path.stem} {step + 1}/{steps}: {means}, {perf_counter() - start:.0f} s", flush=True)
            seen = []
        if step % SAVE_EVERY == SAVE_EVERY - 1 or step == steps - 1:
            state = {"network": network.state_dict(), "step": step + 1}
            state["optimizers"] = [optimizer.state_dict() for optimizer, _ in optimizers]
            with replaced(path) as partial:
                torch.save(state, partial)
    network.eval()


def matrices(*parts: nn.Module) -> list[nn.Parameter]:
    """Matrices and kernels in parts of a network, of those that are learned, without embeddings: what Muon is for."""
    layers = (layer for part in parts for layer in part.modules() if not isinstance(layer, nn.Embedding))
    values = (values for layer in layers for values in layer.parameters(recurse=False))
    return [x for x in values if x.requires_grad and x.ndim > 1 and len(x) > 1]


def pace(step: int, steps: int) -> float:
    """Share of the learning rate at a step: a hundred steps to warm up, then half a cosine."""
    return min(1.0, (step + 1) / 100) * (0.02 + 0.98 * (1 + cos(pi * step / steps)) / 2)


def half() -> torch.autocast:
    """BF16 where it is safe: twice as fast on processors that know it. On others FP32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=torch_precision() == "BF16")


def keep_memory() -> None:
    """Have glibc keep what is freed for the next step: to give it back and be given it anew costs as much as computing.

    For the rest of the process; with other C libraries nothing changes. Source: mallopt(3).
    """
    trim_threshold, mmap_max = -1, -4
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(trim_threshold, -1)  # never
        libc.mallopt(mmap_max, 0)  # large blocks come from the heap, too
