"""`python -m notebooks.new_case --pictures digits.npy`: read digits from the command line."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from notebooks.new_case.pipeline import DigitReader
from utils import command


def main(arguments: list[str] | None = None) -> int:
    """Print a digit for each picture. Returns the exit status: 1 after bad input, with a message."""
    parser = command.parser(__package__, "Read pictures of handwritten digits.")
    parser.add_argument("--pictures", required=True, help="an array [n, 8, 8] of values from 0 to 1, saved by numpy")
    return command.run(read, parser.parse_args(arguments))


def read(options: argparse.Namespace) -> None:
    reader = DigitReader(options.folder or command.tiny(__package__), options.device)
    for digit in reader(np.load(options.pictures)).argmax(1):
        print(digit)


if __name__ == "__main__":
    sys.exit(main())
