"""The repository, and the folders that hold checkpoints, converted models and training runs."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def models_dir() -> Path:
    """The folder for checkpoints and converted models: MODELS_DIR, or `models` in the repository."""
    return Path(os.environ.get("MODELS_DIR") or ROOT / "models").expanduser().resolve()


def checkpoint_lists(root: Path) -> list[Path]:
    """Every checkpoints.toml of a repository: those of its notebooks, then those of what notebooks share."""
    return sorted(root.glob("notebooks/*/checkpoints.toml")) + sorted(root.glob("utils/*/checkpoints.toml"))


def notebook_dir(package: str) -> Path:
    """The folder of the notebook that a module belongs to; package: the module's `__package__`."""
    return ROOT / "notebooks" / package.split(".")[1]


def training_dir(package: str) -> Path:
    """The folder in which a notebook's training keeps what it has learned so far; package: as for `notebook_dir`."""
    return models_dir() / f"{notebook_dir(package).name}-training"
