"""Trains the tiny checkpoint: `python -m notebooks.new_case.training`. It takes half a minute on one core."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from notebooks.new_case import data, measuring
from notebooks.new_case.network import WEIGHTS, DigitNetwork, load, predict
from utils import files, paths
from utils.training import provenance

TINY = paths.notebook_dir(__package__) / "tiny"
EPOCHS, BATCH, LEARNING_RATE = 30, 64, 2e-3
SEED = 0


def train(digits: data.Digits, epochs: int = EPOCHS) -> DigitNetwork:
    """A network trained on pictures [n, 8, 8] and their labels [n], in evaluation mode."""
    torch.manual_seed(SEED)
    network = DigitNetwork()
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    pictures, labels = torch.from_numpy(digits.pictures), torch.from_numpy(digits.labels)
    start = perf_counter()
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(labels)).split(BATCH):
            # loss of a batch
            logits = network(pictures[rows])  # [batch, 10]
            loss = F.cross_entropy(logits, labels[rows])
            # one step of the optimizer
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += len(rows) * loss.item()
        print(f"epoch {epoch + 1} of {epochs}: loss {total / len(labels):.4f}", flush=True)
    provenance.STAGES.append(provenance.stage("digits", epochs, perf_counter() - start))
    return network.eval()


def save(network: DigitNetwork, folder: Path = TINY) -> Path:
    """Write the weights, with how they were trained, to a folder, whole or not at all; returns the file."""
    with files.replaced(folder / WEIGHTS) as path:
        save_file(network.state_dict(), path, provenance.metadata())
    return folder / WEIGHTS


def main() -> None:
    path = save(train(data.training_set()))
    pictures, labels = data.held_out()
    accuracy = measuring.accuracy(predict(load(path.parent), pictures), labels)
    print(f"{path.name}: accuracy {accuracy:.4f} on held-out pictures")


if __name__ == "__main__":
    main()
