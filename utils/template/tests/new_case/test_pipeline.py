"""DigitReader: probabilities, and errors that say what is wrong with the input."""

import numpy as np
import pytest

from notebooks.new_case.pipeline import DigitReader
from tests.new_case import small


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> DigitReader:
    return DigitReader(small.ir(tmp_path_factory.mktemp("ir")), INFERENCE_PRECISION_HINT="f32")


def test_probabilities_sum_to_one_and_do_not_depend_on_the_batch(reader):
    pictures = small.pictures(5)
    probabilities = reader(pictures)
    assert probabilities.shape == (5, 10)
    assert probabilities.sum(1) == pytest.approx(np.ones(5), abs=1e-5)
    assert reader(pictures[3:4])[0] == pytest.approx(probabilities[3], abs=1e-5)


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (np.zeros((8, 8)), r"has the shape \[8, 8\]. Give \[n, 8, 8\]"),
        (np.zeros((0, 8, 8)), "n at least 1"),
        (np.full((1, 8, 8), 16), "values outside 0 to 1. Scale them"),
        (np.full((1, 8, 8), np.nan), "values outside 0 to 1"),
    ],
)
def test_bad_pictures_are_errors(reader, pictures, message):
    with pytest.raises(ValueError, match=message):
        reader(pictures)


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no openvino_model.xml. Give the folder that the conversion wrote"):
        DigitReader(tmp_path)
