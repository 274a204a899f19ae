"""The network in PyTorch: one convolution and two dense layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

WEIGHTS = "model.safetensors"


class DigitNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 16, 3, padding=1)
        self.hidden = nn.Linear(16 * 4 * 4, 64)
        self.output = nn.Linear(64, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits [n, 10] of pictures [n, 8, 8]."""
        x = self.convolution(pictures[:, None]).relu()  # [n, 16, 8, 8]
        x = F.max_pool2d(x, 2)  # [n, 16, 4, 4]
        x = self.hidden(x.flatten(1)).relu()  # [n, 64]
        return self.output(x)  # [n, 10]


@torch.inference_mode()
def predict(network: DigitNetwork, pictures: np.ndarray) -> np.ndarray:
    """What PyTorch computes: logits, float32 [n, 10], for float32 pictures [n, 8, 8]."""
    return network(torch.from_numpy(pictures)).numpy()


def load(folder: Path) -> DigitNetwork:
    """The network with the weights in a folder, in evaluation mode. Raises ValueError where they do not fit."""
    network = DigitNetwork()
    try:
        network.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{folder / WEIGHTS} is no checkpoint of this network: {error}. Train it again.") from error
    return network.eval()


def random(seed: int = 0) -> DigitNetwork:
    """A network of random weights, for tests and for speed."""
    torch.manual_seed(seed)
    return DigitNetwork().eval()
