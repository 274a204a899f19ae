"""Weights as a function of their names: every tensor is drawn from a generator seeded with its name's CRC-32.

So reference outputs can be stored without their 65 MB of weights. The recipe of TensorFlow names (kernels are
[in, out]): what a leaf name stands for decides the scale.
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
