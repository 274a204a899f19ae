"""Weights as a function of their names: every tensor is drawn from a generator seeded with its name's CRC-32.

So reference outputs can be stored without their weights. What a leaf name stands for decides the scale, by a recipe of
its own for TensorFlow's names (kernels are [in, out]) and for PyTorch's. Inputs too large to store are drawn likewise.
"""

import zlib

import numpy as np

OFFSET_AND_SCALE = {"moving_mean": (0, 0.1), "gamma": (1, 0.1), "beta": (0, 0.05), "bias": (0, 0.05)}


def tensorflow(name: str, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """The float32 tensor of a TensorFlow variable."""
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    leaf = name.rpartition("/")[2]
    if leaf == "moving_variance":
        values = 0.5 + np.abs(normal)
    elif leaf.startswith(("alphadice", "prelu_")):
        values = 0.1 + 0.05 * normal
    elif leaf in OFFSET_AND_SCALE:
        offset, spread = OFFSET_AND_SCALE[leaf]
        values = offset + spread * normal
    else:  # embeddings are scaled by their width, kernels by what they sum over
        values = normal / np.sqrt(shape[1] if leaf.endswith("_embedding_var") else shape[0])
    return (values * scale).astype(np.float32)


def pytorch(name: str, shape: tuple[int, ...], dtype: str = "float32", scale: float = 1.0, add: float = 0.0):
    """The array of a PyTorch state dict's tensor; counters (integers) are 0."""
    if not dtype.startswith("float"):
        return np.zeros(shape, dtype)
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(shape))
    leaf = name.rpartition(".")[2]
    if leaf == "running_var":
        values = 0.5 + np.abs(normal)
    elif leaf == "running_mean":
        values = 0.1 * normal
    elif leaf in ("weight_g", "original0"):  # length and direction of a normalised weight
        values = 1 + 0.1 * normal
    elif leaf in ("weight_v", "original1"):
        values = normal
    elif len(shape) > 1:
        values = normal / np.sqrt(np.prod(shape[1:]))
    elif leaf in ("weight", "gamma", "alpha"):
        values = 1 + 0.1 * normal
    else:
        values = 0.05 * normal
    return np.asarray(values * scale + add, np.float32)


def normal_input(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A float32 input drawn from the standard normal distribution."""
    return _generator_of_input(name).standard_normal(shape).astype(np.float32)


def uniform_input(name: str, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """A float32 input drawn evenly from `low` to `high`."""
    return (low + (high - low) * _generator_of_input(name).random_sample(shape)).astype(np.float32)


def _generator_of_input(name: str) -> np.random.RandomState:
    return np.random.RandomState(zlib.crc32(f"input:{name}".encode()))
