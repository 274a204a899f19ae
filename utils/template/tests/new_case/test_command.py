"""The command line: digits on the output, one message for bad input."""

import numpy as np

from notebooks.new_case.__main__ import main
from notebooks.new_case.pipeline import DigitReader
from tests.new_case import small


def test_it_prints_a_digit_for_each_picture(tmp_path, capsys):
    folder, file = small.ir(tmp_path), tmp_path / "digits.npy"
    np.save(file, small.pictures(4))
    assert main([str(folder), "--pictures", str(file)]) == 0
    expected = DigitReader(folder)(small.pictures(4)).argmax(1)
    assert capsys.readouterr().out.split() == [str(digit) for digit in expected]


def test_bad_input_is_a_message(tmp_path, capsys):
    np.save(tmp_path / "digits.npy", np.zeros((8, 8)))
    assert main([str(small.ir(tmp_path)), "--pictures", str(tmp_path / "digits.npy")]) == 1
    assert "pictures has the shape [8, 8]" in capsys.readouterr().err
