"""Trains the tiny checkpoint and its two ablations: `python -m notebooks.dien.training [FORM ...]`.

The task: after a user's last movies, tell the one rated next from one never rated, drawn half the time uniformly and
half the time by popularity. Seeded; writes FP16 safetensors and a configuration to tiny/ and prints AUC and log-loss
on the held-out ends of the sequences. FORM is dien (AUGRU, auxiliary loss), plain_gru (the attention gates nothing)
or sum_pooling (no recurrent network at all).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch.nn import functional as F

from notebooks.dien import data
from notebooks.dien.metrics import auc, log_loss
from notebooks.dien.network.dien import CODED, DIEN, Config
from utils import paths

TINY = paths.notebook_dir(__package__) / "tiny"
FORMS = {"dien": CODED, "plain_gru": "gru", "sum_pooling": "sum"}
EPOCHS, BATCH, RATE = 1, 512, 2e-3  # positives a batch; each comes with one negative
AUXILIARY = 0.5  # weight of the auxiliary loss
SEED = 0


def train(form: str, epochs: int = EPOCHS, limit: int | None = None) -> DIEN:
    """A trained network of one form. `limit` cuts an epoch to so many batches (for tests)."""
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    movies = data.movielens()
    network = DIEN(Config(*movies.sizes, evolution=FORMS[form], independent=True)).train()
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    users, places = movies.positions(held_out=False)
    steps = min(limit or len(users), len(users) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, epochs * steps, pct_start=0.1)
    begin, seen = perf_counter(), []
    for epoch in range(epochs):
        order = rng.permutation(len(users))
        for step in range(steps):
            rows = order[step * BATCH : (step + 1) * BATCH]
            main, auxiliary = losses(network, movies, users[rows], places[rows], rng)
            optimizer.zero_grad()
            (main + AUXILIARY * auxiliary).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            seen.append((main.item(), auxiliary.item()))
            if step % 100 == 99:
                means = "loss {:.4f}, auxiliary {:.4f}".format(*np.mean(seen[-100:], 0))
                print(
                    f"{form}, epoch {epoch + 1}, {step + 1}/{steps}: {means}, {perf_counter() - begin:.0f} s",
                    flush=True,
                )
    return network.eval()


def losses(network: DIEN, movies: data.MovieLens, users: np.ndarray, places: np.ndarray, rng: np.random.Generator):
    """Log-loss and auxiliary loss of a batch: a positive and a negative for each user and place [n].

    The first GRU reads each history once; attention and what follows it run for both candidates.
    """
    positives = np.array([movies.sequences[u - 1][p] for u, p in zip(users, places, strict=True)])
    popular = rng.random(len(users)) < 0.5
    negatives = np.where(popular, movies.negatives(users, "popularity", rng), movies.negatives(users, "uniform", rng))
    mid_his, lengths = movies.histories(users, places)
    mid_his = mid_his[:, : lengths.max()]
    mask = torch.from_numpy((np.arange(mid_his.shape[1]) < lengths[:, None]).astype(np.float32))
    seq_len = torch.from_numpy(lengths)

    def items(ids: np.ndarray) -> torch.Tensor:
        return network.items(torch.from_numpy(ids), torch.from_numpy(movies.category[ids]))

    history = items(mid_his)
    auxiliary = torch.zeros(())
    if network.config.evolution == "sum":
        interests = history  # no recurrent network: nothing reads them
    else:
        interests = network.extract(history, seq_len)
        others = rng.integers(1, movies.sizes[1], mid_his.shape)
        auxiliary = network.auxiliary_loss(interests, history, items(others), mask)
    user = network["uid_embedding_var"][torch.from_numpy(users)]
    both = (torch.cat([x, x]) for x in (history, interests, mask, seq_len))
    candidates = items(np.concatenate([positives, negatives]))
    clicked = network.judge(torch.cat([user, user]), candidates, *both)["y_hat"][:, 0]
    target = torch.cat([torch.ones(len(users)), torch.zeros(len(users))])
    return F.binary_cross_entropy(clicked.clamp(1e-6, 1 - 1e-6), target), auxiliary


@torch.inference_mode()
def predict(network: DIEN, examples: data.Examples, batch: int = 2048) -> np.ndarray:
    """Probability of a click for each example, by PyTorch."""
    found = []
    for start in range(0, len(examples), batch):
        inputs = examples.inputs(slice(start, start + batch))
        found.append(network(**{name: torch.from_numpy(x) for name, x in inputs.items()})[0][:, 0].numpy())
    return np.concatenate(found)


def save(network: DIEN, form: str, folder: Path = TINY) -> Path:
    """Write `<form>.safetensors` (FP16) and `<form>.json` (the configuration), whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: x.detach().to(torch.float16).numpy() for name, x in network.state_dict().items()}
    path, config = folder / f"{form}.safetensors", folder / f"{form}.json"
    save_file(tensors, path.with_suffix(".partial"))
    config.with_suffix(".text").write_text(json.dumps(asdict(network.config), indent=1) + "\n", encoding="utf-8")
    os.replace(config.with_suffix(".text"), config)
    os.replace(path.with_suffix(".partial"), path)
    return path


def load(form: str = "dien", folder: Path = TINY) -> DIEN:
    """The trained network of a form in evaluation mode, FP32. Raises ValueError for a form that is not there."""
    path = folder / f"{form}.safetensors"
    if not path.is_file():
        raise ValueError(f"{folder} holds no {path.name}. Train it: make train CASE=dien.")
    config = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    network = DIEN(Config(**{key: tuple(x) if isinstance(x, list) else x for key, x in config.items()}))
    network.load_state_dict({name: torch.from_numpy(x.astype(np.float32)) for name, x in load_file(path).items()})
    return network.eval()


def main(forms: list[str]) -> None:
    unknown = sorted(set(forms) - FORMS.keys())
    if unknown:
        sys.exit(f"There is no form {unknown[0]!r}. There are: {', '.join(FORMS)}.")
    for form in forms or FORMS:
        path = save(train(form), form)
        for sampling in data.SAMPLINGS:
            examples = data.movielens().test(sampling)
            scores = predict(load(form), examples)
            quality = f"AUC {auc(examples.clicked, scores):.4f}, log-loss {log_loss(examples.clicked, scores):.4f}"
            print(f"{path.name}, {sampling} negatives: {quality}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
