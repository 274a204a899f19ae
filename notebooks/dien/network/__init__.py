"""DIEN in PyTorch, and the readers of its checkpoints."""

from notebooks.dien.network.checkpoint import load_tiny, save_tiny
from notebooks.dien.network.dien import CODED, DIEN, EVOLUTIONS, INPUTS, PAPER, Config
from notebooks.dien.network.released import load_released
