"""The repository, and the folders that hold checkpoints, converted models and training runs."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def models_dir() -> Path:
    """The folder for checkpoints and converted models: MODELS_DIR, or `models` in the repository."""
    return Path(os.environ.get("MODELS_DIR") or ROOT / "models").expanduser().resolve()


def training_dir(case: str) -> Path:
    """The folder in which a notebook's training keeps its intermediate checkpoints."""
    return models_dir() / f"{case}-training"
