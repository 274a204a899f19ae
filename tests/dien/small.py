"""A small random network, batches for it, and a data set of a few users, for the tests of this notebook."""

from pathlib import Path

import numpy as np
import torch

from notebooks.dien.network import DIEN, Config

SIZES = (40, 60, 7)  # users, items, categories
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


def network(seed: int = 0, **options) -> DIEN:
    """A network with random biases and statistics, unlike a new one, in evaluation mode."""
    torch.manual_seed(seed)
    dien = DIEN(Config(*SIZES, **options)).eval()
    with torch.no_grad():
        for name, tensor in dien.state_dict().items():
            if name.endswith("variance"):
                tensor.uniform_(0.5, 2)
            else:
                tensor.add_(0.15 * torch.randn_like(tensor))
    return dien


def batch(lengths: list[int], width: int | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs by name for histories of these lengths, padded with 0 to `width`."""
    rng = np.random.default_rng(seed)
    rows, width = len(lengths), width or max(lengths)
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.float32)
    users, items, categories = SIZES
    return {
        "uid": rng.integers(1, users, rows),
        "mid": rng.integers(1, items, rows),
        "cat": rng.integers(1, categories, rows),
        "mid_his": rng.integers(1, items, (rows, 50))[:, :width] * mask.astype(int),
        "cat_his": rng.integers(1, categories, (rows, 50))[:, :width] * mask.astype(int),
        "mask": mask,
        "seq_len": np.array(lengths),
    }


def run(dien: DIEN, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All stages of the network, by PyTorch."""
    with torch.no_grad():
        stages = dien.stages(**{name: torch.from_numpy(x) for name, x in inputs.items()})
    return {name: x.numpy() for name, x in stages.items()}


def ragged(inputs: dict[str, np.ndarray]) -> tuple:
    """The arguments of ClickModel.score for a padded batch."""
    histories = [
        [row[:n] for row, n in zip(inputs[name], inputs["seq_len"], strict=True)] for name in ("mid_his", "cat_his")
    ]
    return inputs["uid"], inputs["mid"], inputs["cat"], *histories


def write_ratings(folder: Path, users: int = 6, movies: int = 40, each: int = 20) -> Path:
    """Files of MovieLens' form. User u rates movies (u, u + 1, ...), in the file latest first."""
    folder.mkdir(parents=True, exist_ok=True)
    genres = ("Drama", "Comedy Drama", "Action")
    items = [f"Movie {i:02}\tMovie\t1999\t{genres[i % 3]}" for i in range(movies)]
    header = "item_id:token\tmovie_title:token\trelease_year:float\tgenre:token"
    (folder / "ml-1m.item").write_text("\n".join([header, *items]) + "\n", encoding="utf-8")
    rows = [
        f"1m_{user}\tMovie {(user + place) % movies:02}\t5\t{1000 + place}"
        for user in range(1, users + 1)
        for place in reversed(range(each))
    ]
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    (folder / "ml-1m.inter").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return folder
