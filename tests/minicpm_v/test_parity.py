"""The parity rows compare every sub-model of both versions with PyTorch, and notice other weights."""

import numpy as np
import pytest
from PIL import Image

from notebooks.minicpm_v.measuring.parity import compare_with_pytorch
from tests.minicpm_v import small
from utils import compare

NOISE = np.random.default_rng(0).integers(0, 256, (112, 170, 3), dtype=np.uint8)
PARTS = ["vision tower", "resampler", "token embedding", "language model"]


@pytest.mark.parametrize("picture", [Image.fromarray(NOISE), Image.fromarray(NOISE[:56, :56])], ids=["slices", "whole"])
def test_every_sub_model_agrees(both, picture):
    rows = compare_with_pytorch(*both, picture)
    assert [row["stage"] for row in rows] == PARTS
    compare.check(rows)
    assert max(row["max_abs_diff"] for row in rows) > 0


def test_other_weights_fail(ir_2_6, checkpoint_2_6, tmp_path, monkeypatch):
    other = small.weights(small.CONFIGS[2.6], seed=1)
    load = compare_with_pytorch.__globals__["load"]

    def loaded(*arguments, **options):
        network = load(*arguments, **options)
        network.load_state_dict(other)
        return network

    monkeypatch.setitem(compare_with_pytorch.__globals__, "load", loaded)
    rows = compare_with_pytorch(checkpoint_2_6, ir_2_6, Image.fromarray(NOISE))
    assert not any(row["pass"] for row in rows)
