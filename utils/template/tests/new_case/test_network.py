"""The network computes what its layers say, and refuses files that hold something else."""

import pytest
import torch
from torch.nn import functional as F

from notebooks.new_case import network
from tests.new_case import small


def test_it_computes_what_the_layers_say():
    model = network.random()
    pictures = torch.from_numpy(small.pictures())
    weights = model.state_dict()
    x = F.conv2d(pictures[:, None], weights["convolution.weight"], weights["convolution.bias"], padding=1).clamp(min=0)
    x = x.reshape(3, 16, 4, 2, 4, 2).amax((3, 5)).reshape(3, -1)  # pooling
    x = (x @ weights["hidden.weight"].T + weights["hidden.bias"]).clamp(min=0)
    expected = x @ weights["output.weight"].T + weights["output.bias"]
    assert network.predict(model, pictures.numpy()) == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_file_that_is_no_checkpoint_is_an_error(tmp_path):
    (tmp_path / network.WEIGHTS).write_bytes(b"")
    with pytest.raises(ValueError, match="is no checkpoint of this network"):
        network.load(tmp_path)
