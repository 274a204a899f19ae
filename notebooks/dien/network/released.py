"""Reads the authors' trained checkpoint with numpy alone, no TensorFlow.

A TensorFlow checkpoint keeps its values in one file of plain little-endian numbers (`*.data-00000-of-00001`) and
their places in a small index. The places are those of the published file (record 3463683 of zenodo.org).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

FILE = "ckpt_noshuffDIEN3.data-00000-of-00001"
SIZE = 198_261_692  # bytes: the optimizer's slots lie between the tensors
TENSORS: dict[str, tuple[int, tuple[int, ...]]] = {  # name: (offset in bytes, shape), float32, kernels [in, out]
    "cat_embedding_var": (0, (1601, 18)),
    "mid_embedding_var": (132_666_596, (367_983, 18)),
    "uid_embedding_var": (159_161_372, (543_060, 18)),
    "dien//prelu_": (115_272, (36,)),
    "dien/aux_loss/aux_net/bn1gru/beta": (115_416, (72,)),
    "dien/aux_loss/aux_net/bn1gru/gamma": (115_704, (72,)),
    "dien/aux_loss/aux_net/bn1gru/moving_mean": (115_992, (72,)),
    "dien/aux_loss/aux_net/bn1gru/moving_variance": (116_280, (72,)),
    "dien/aux_loss/aux_net/f1gru/bias": (116_568, (100,)),
    "dien/aux_loss/aux_net/f1gru/kernel": (116_968, (72, 100)),
    "dien/aux_loss/aux_net/f2gru/bias": (145_768, (50,)),
    "dien/aux_loss/aux_net/f2gru/kernel": (145_968, (100, 50)),
    "dien/aux_loss/aux_net/f3gru/bias": (165_968, (2,)),
    "dien/aux_loss/aux_net/f3gru/kernel": (165_976, (50, 2)),
    "dien/f11_1/bias": (166_376, (36,)),
    "dien/f11_1/kernel": (166_520, (36, 36)),
    "dien/f1_att1_1/bias": (171_704, (80,)),
    "dien/f1_att1_1/kernel": (172_024, (144, 80)),
    "dien/f2_att1_1/bias": (218_104, (40,)),
    "dien/f2_att1_1/kernel": (218_264, (80, 40)),
    "dien/f3_att1_1/bias": (231_064, (1,)),
    "dien/f3_att1_1/kernel": (231_068, (40, 1)),
    "dien/fcn/bn1/beta": (231_236, (162,)),
    "dien/fcn/bn1/gamma": (231_884, (162,)),
    "dien/fcn/bn1/moving_mean": (232_532, (162,)),
    "dien/fcn/bn1/moving_variance": (233_180, (162,)),
    "dien/fcn/dice_1/alphadice_1": (464_372, (200,)),
    "dien/fcn/dice_2/alphadice_2": (465_172, (80,)),
    "dien/fcn/f1/bias": (1_217_964, (200,)),
    "dien/fcn/f1/kernel": (1_218_764, (162, 200)),
    "dien/fcn/f2/bias": (1_348_364, (80,)),
    "dien/fcn/f2/kernel": (1_348_684, (200, 80)),
    "dien/fcn/f3/bias": (1_412_684, (2,)),
    "dien/fcn/f3/kernel": (1_412_692, (80, 2)),
    "dien/gru1/gru_cell/candidate/bias": (132_603_524, (36,)),
    "dien/gru1/gru_cell/candidate/kernel": (132_603_668, (72, 36)),
    "dien/gru1/gru_cell/gates/bias": (132_614_036, (72,)),
    "dien/gru1/gru_cell/gates/kernel": (132_614_324, (72, 72)),
    "dien/gru2/candidate/bias": (132_635_060, (36,)),
    "dien/gru2/candidate/kernel": (132_635_204, (72, 36)),
    "dien/gru2/gates/bias": (132_645_572, (72,)),
    "dien/gru2/gates/kernel": (132_645_860, (72, 72)),
}


def load_released(path: str | Path) -> dict[str, np.ndarray]:
    """The tensors of the released checkpoint by TensorFlow name, float32.

    path: the data file, or a folder that holds it under its published name. Raises ValueError when the file is
    missing, has another size than the published one, or holds values that no trained network has.
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"{path} is not there. Give the data file of the released checkpoint, {FILE}.")
    if (size := path.stat().st_size) != SIZE:
        raise ValueError(f"{path} has {size:,} bytes, the released checkpoint {SIZE:,}: wrong or cut. Fetch it again.")
    tensors = {}
    for name, (offset, shape) in TENSORS.items():
        tensors[name] = np.fromfile(path, "<f4", int(np.prod(shape)), offset=offset).reshape(shape).astype(np.float32)
        if not np.isfinite(tensors[name]).all() or name.endswith("variance") and tensors[name].min() < 0:
            raise ValueError(
                f"{path} holds no {name} at its place: the file is damaged, or another one. Fetch it again."
            )
    return tensors
