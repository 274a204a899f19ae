"""Small random networks and inputs for them, for the tests of this notebook."""

import numpy as np
import torch
from torch import nn

from notebooks.wav2lip.measuring.bench import random_inputs
from notebooks.wav2lip.network import SyncNet, Wav2Lip

WIDTH = 1 / 8
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


def randomised(network: nn.Module, seed: int = 0) -> nn.Module:
    """The network with weights, biases and statistics drawn from a seed, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5, generator=generator)
            elif tensor.ndim > 1:
                tensor.normal_(0, tensor[0].numel() ** -0.5, generator=generator)
            elif tensor.is_floating_point():
                tensor.normal_(float(name.endswith("weight")), 0.1, generator=generator)
    return network.eval()


def generator(seed: int = 0) -> Wav2Lip:
    return randomised(Wav2Lip(WIDTH), seed)


def expert(seed: int = 0) -> SyncNet:
    return randomised(SyncNet(WIDTH), seed)


CALIBRATION = [random_inputs(2, seed) for seed in range(2)]


def run(network: nn.Module, *arrays: np.ndarray) -> np.ndarray | list[np.ndarray]:
    """What PyTorch computes."""
    with torch.inference_mode():
        outputs = network(*(torch.from_numpy(x) for x in arrays))
    return outputs.numpy() if isinstance(outputs, torch.Tensor) else [x.numpy() for x in outputs]
