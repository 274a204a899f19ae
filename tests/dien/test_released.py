"""The authors' checkpoint is read from its places in the file; a file that is another one is refused."""

import numpy as np
import pytest
import torch

from notebooks.dien.network import DIEN, Config
from notebooks.dien.network.released import FILE, SIZE, TENSORS, load_released


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A file of the published size and layout: 0 but for the tensors, which count up from their own number."""
    path = tmp_path_factory.mktemp("released") / FILE
    with path.open("wb") as file:
        file.truncate(SIZE)
        for number, (offset, shape) in enumerate(TENSORS.values()):
            file.seek(offset)
            (number + np.arange(np.prod(shape), dtype="<f4") / 1e6).tofile(file)
    return path


def test_the_places_neither_overlap_nor_leave_the_file():
    spans = sorted((offset, offset + 4 * int(np.prod(shape))) for offset, shape in TENSORS.values())
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert spans[-1][1] == SIZE


@pytest.mark.parametrize("as_folder", [False, True])
def test_every_tensor_comes_from_its_place(checkpoint, as_folder):
    tensors = load_released(checkpoint.parent if as_folder else checkpoint)
    for number, (name, (_, shape)) in enumerate(TENSORS.items()):
        assert tensors[name].shape == shape and tensors[name].dtype == np.float32
        assert tensors[name].reshape(-1)[0] == number
        assert tensors[name].reshape(-1)[-1] == pytest.approx(number + (np.prod(shape) - 1) / 1e6)


def test_the_network_takes_them_all(checkpoint):
    tensors = load_released(checkpoint)
    config = Config.of(tensors)
    assert (config.n_uid, config.n_mid, config.n_cat) == (543_060, 367_983, 1601)
    network = DIEN(config)
    network.load_state_dict({name: torch.from_numpy(x) for name, x in tensors.items()})
    assert network["dien/fcn/f3/bias"].tolist() == tensors["dien/fcn/f3/bias"].tolist()


def test_another_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not there"):
        load_released(tmp_path)
    (tmp_path / FILE).write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match="has 100 bytes, the released checkpoint 198,261,692"):
        load_released(tmp_path)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / FILE
    with path.open("wb") as file:
        file.truncate(SIZE)
        file.seek(TENSORS["dien/f11_1/bias"][0])
        file.write(np.array([np.nan], "<f4").tobytes())
    with pytest.raises(ValueError, match="holds no dien/f11_1/bias at its place"):
        load_released(path)
