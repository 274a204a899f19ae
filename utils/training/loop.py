"""Training of the tiny checkpoints: a loop that saves its state and goes on from it, on a GPU where there is one, and
BF16 where that is faster."""

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
from utils.training import provenance
from utils.training.muon import Muon

SAVE_EVERY = 250  # steps
MUON_RATE_FACTOR = 2.0  # Muon's learning rate divided by AdamW's


def begin(seed: int = 0) -> None:
    """Seed PyTorch; where there is a GPU, all that is made from now on is made there, and matrices multiply in TF32."""
    if torch.cuda.is_available():
        torch.set_default_device("cuda")
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(seed)


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
    """Minimise the value "loss" of `loss(step, rng)` over `steps` steps; means of all its values are printed.

    AdamW has the learning rate `rate` times `learning_rate_factor`. Muon optimises the parameters in `muon`, which are
    `matrices` of hidden layers. `path` is the file of the training state, from which a stopped run goes on; its name is
    that of the stage in the checkpoint's metadata (`utils.training.provenance`). The numbers that `rng` draws are a
    function of `seed` and the step.
    """
    keep_memory()
    trainable = [p for p in network.parameters() if p.requires_grad]
    hidden = {id(matrix): matrix for matrix in muon}
    others = [p for p in trainable if id(p) not in hidden]
    optimizers = [(torch.optim.AdamW(others, rate, betas=(0.9, 0.98), weight_decay=1e-2), rate)]
    if hidden:
        dtype = torch.bfloat16 if torch_precision() == "BF16" else torch.float32
        optimizers.append((Muon(hidden.values(), MUON_RATE_FACTOR * rate, dtype=dtype), MUON_RATE_FACTOR * rate))

    # go on from the training state
    first_step, earlier = 0, {}
    if path.exists():
        state = torch.load(path, weights_only=True)
        network.load_state_dict(state["network"])
        for (optimizer, _), saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first_step, earlier = state["step"], state.get("stage", {})

    network.train()
    start, history, stage = perf_counter(), [], earlier
    for step in range(first_step, steps):
        # gradients, clipped to a norm of 1
        values = loss(step, np.random.default_rng([seed, step]))
        network.zero_grad()
        values["loss"].backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)

        # update, at this step's learning rate
        for optimizer, peak_rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak_rate * learning_rate_factor(step, steps)
            optimizer.step()

        # print the means of a hundred steps
        history.append({key: float(x.detach()) for key, x in values.items()})
        if step % 100 == 99:
            keys = dict.fromkeys(key for values in history for key in values)
            means = ", ".join(f"{key} {np.mean([x[key] for x in history if key in x]):.4f}" for key in keys)
            print(f"{path.stem} {step + 1}/{steps}: {means}, {perf_counter() - start:.0f} s", flush=True)
            history = []

        # save the training state
        if step % SAVE_EVERY == SAVE_EVERY - 1 or step == steps - 1:
            state = {"network": network.state_dict(), "step": step + 1}
            state["optimizers"] = [optimizer.state_dict() for optimizer, _ in optimizers]
            state["stage"] = stage = provenance.stage(path.stem, step + 1, perf_counter() - start, earlier)
            with replaced(path) as partial:
                torch.save(state, partial)
    provenance.STAGES.append(stage)
    network.eval()


def matrices(*parts: nn.Module) -> list[nn.Parameter]:
    """The trainable matrices and kernels in parts of a network, for Muon; embeddings are left out."""
    layers = (layer for part in parts for layer in part.modules() if not isinstance(layer, nn.Embedding))
    values = (values for layer in layers for values in layer.parameters(recurse=False))
    return [x for x in values if x.requires_grad and x.ndim > 1 and len(x) > 1]


def learning_rate_factor(step: int, steps: int) -> float:
    """The factor of the learning rate at a step: a linear warm-up of a hundred steps, times half a cosine to 0.02."""
    return min(1.0, (step + 1) / 100) * (0.02 + 0.98 * (1 + cos(pi * step / steps)) / 2)


def autocast() -> torch.autocast:
    """Autocast to BF16 on processors with BF16 arithmetic, twice as fast there; elsewhere no autocast."""
    return torch.autocast("cpu", torch.bfloat16, enabled=torch_precision() == "BF16")


def keep_memory() -> None:
    """Make glibc keep freed memory for the next step: returning it and requesting it again costs as much as computing.

    It holds for the rest of the process; with other C libraries nothing changes. Source: mallopt(3).
    """
    trim_threshold, mmap_max = -1, -4
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(trim_threshold, -1)  # never
        libc.mallopt(mmap_max, 0)  # large blocks come from the heap, too
