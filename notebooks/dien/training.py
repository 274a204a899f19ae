"""Trains the tiny checkpoint and its three ablations: `python -m notebooks.dien.training [FORM ...]`.

The network learns to tell the movie that a user rated next from one that the user did not rate before the held-out end.
Half of these negatives are drawn uniformly, half by popularity. Training is seeded. It writes FP16 safetensors and a
configuration to tiny/, and prints AUC and log-loss on the held-out ends of the sequences. FORM is dien (the AUGRU of
the authors' program, auxiliary loss), paper_gate (the AUGRU as the paper prints it), plain_gru (attention does not gate
the second GRU) or sum_pooling (no recurrent network).
"""

from __future__ import annotations

import sys
from functools import partial
from time import perf_counter

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch.nn import functional as F

from notebooks.dien import data
from notebooks.dien.measuring import quality
from notebooks.dien.network import CODED, DIEN, PAPER, Config, load_tiny, save_tiny
from utils.training import parts, provenance

FORMS = {"dien": CODED, "paper_gate": PAPER, "plain_gru": "gru", "sum_pooling": "sum"}
EPOCHS = 1
BATCH_SIZE = 512  # positives; each comes with one negative
LEARNING_RATE = 2e-3  # the maximum of the schedule
AUXILIARY_WEIGHT = 0.5
MAX_GRADIENT_NORM = 5.0
SEED = 0


def train(form: str, epochs: int = EPOCHS, limit: int | None = None) -> DIEN:
    """A trained network of one form. `limit`: the largest number of batches in an epoch (for tests)."""
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    movies = data.movielens()
    network = DIEN(Config(*movies.sizes, evolution=FORMS[form], independent=True)).train()
    users, positions = movies.positions(held_out=False)
    steps = min(limit or len(users), len(users) // BATCH_SIZE)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, epochs * steps, pct_start=0.1)
    start, history = perf_counter(), []
    for epoch in range(epochs):
        order = rng.permutation(len(users))
        for step in range(steps):
            # Loss of a batch
            rows = order[step * BATCH_SIZE : (step + 1) * BATCH_SIZE]
            main, auxiliary = losses(network, movies, users[rows], positions[rows], rng)

            # Gradients, limited in norm
            optimizer.zero_grad()
            (main + AUXILIARY_WEIGHT * auxiliary).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT_NORM)

            # Parameters and learning rate
            optimizer.step()
            schedule.step()

            # Progress: mean losses of the last hundred steps
            history.append((main.item(), auxiliary.item()))
            if step % 100 == 99:
                means = "loss {:.4f}, auxiliary {:.4f}".format(*np.mean(history[-100:], 0))
                seconds = perf_counter() - start
                print(f"{form}, epoch {epoch + 1}, {step + 1}/{steps}: {means}, {seconds:.0f} s", flush=True)
    provenance.STAGES.append(provenance.stage(form, epochs * steps, perf_counter() - start))
    return network.eval()


def losses(
    network: DIEN, movies: data.MovieLens, users: np.ndarray, positions: np.ndarray, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-loss and auxiliary loss of a batch: a positive and a negative for each user and position [n].

    The first GRU reads each history once. Attention and the layers after it run for both candidates.
    """

    def items(ids: np.ndarray) -> torch.Tensor:
        return network.items(torch.from_numpy(ids), torch.from_numpy(movies.category[ids]))

    # Candidates: the item that came next, and one that the user did not rate before the held-out end
    positives = movies.items_at(users, positions)  # [n]
    popular = rng.random(len(users)) < 0.5
    by_popularity, uniform = (movies.negatives(users, kind, rng, training=True) for kind in ("popularity", "uniform"))
    negatives = np.where(popular, by_popularity, uniform)

    # Histories, cut to the longest of the batch
    mid_his, lengths = movies.histories(users, positions)
    mid_his = mid_his[:, : lengths.max()]  # [n, steps]
    mask = torch.from_numpy((np.arange(mid_his.shape[1]) < lengths[:, None]).astype(np.float32))  # [n, steps]
    seq_len = torch.from_numpy(lengths)  # [n]
    history = items(mid_his)  # [n, steps, 36]

    # Interests, and the auxiliary loss on them
    auxiliary = torch.zeros(())
    if network.config.evolution == "sum":
        interests = history  # a placeholder: this form has no recurrent network that reads them
    else:
        interests = network.extract(history, seq_len)  # [n, steps, 36]
        others = rng.integers(1, movies.sizes[1], mid_his.shape)
        auxiliary = network.auxiliary_loss(interests, history, items(others), mask)

    # Probability of a click on the positives, then on the negatives
    user = network["uid_embedding_var"][torch.from_numpy(users)]  # [n, 18]
    twice = [torch.cat([x, x]) for x in (history, interests, mask, seq_len)]  # [2n, ...]
    candidates = items(np.concatenate([positives, negatives]))  # [2n, 36]
    clicked = network.score(torch.cat([user, user]), candidates, *twice)["y_hat"][:, 0]  # [2n]
    target = torch.cat([torch.ones(len(users)), torch.zeros(len(users))])  # [2n]
    return F.binary_cross_entropy(clicked.clamp(1e-6, 1 - 1e-6), target), auxiliary


def make(form: str) -> None:
    """Train, save and score one form."""
    path = save_tiny(train(form), form)
    provenance.stamp(path)
    for sampling in data.SAMPLINGS:
        examples = data.movielens().test_set(sampling)
        scores = quality.predict(quality.torch_infer(load_tiny(form)), examples)
        auc, loss = roc_auc_score(examples.clicked, scores), log_loss(examples.clicked, scores)
        print(f"{path.name}, {sampling} negatives: AUC {auc:.4f}, log-loss {loss:.4f}", flush=True)


def main(forms: list[str]) -> None:
    """Make the forms, by default all. Exits with a message for an unknown one."""
    parts.run({form: partial(make, form) for form in FORMS}, forms)


if __name__ == "__main__":
    main(sys.argv[1:])
