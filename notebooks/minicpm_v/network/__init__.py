"""MiniCPM-V in PyTorch and its checkpoints. `reference` runs the unquantised network."""

from notebooks.minicpm_v.network.checkpoint import PARTS, load, save_tiny, scale
from notebooks.minicpm_v.network.model import MiniCPMV
