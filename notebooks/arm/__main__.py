"""The command line: `python -m notebooks.arm model.xml` names the operations of a model that are wrong on ARM;
`-o right.xml` writes the model with its transposed convolutions lifted to two dimensions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import openvino as ov

from notebooks.arm import convert
from utils import command
from utils.models import portable


def main(arguments: list[str] | None = None) -> int:
    """Print the names; the exit status is 1 after an error, whose message is printed."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="Find what is wrong on ARM.")
    parser.add_argument("model", type=Path, help="an IR (.xml) or ONNX file")
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help="the .xml file to write the changed model to")
    return command.run(_examine, parser.parse_args(arguments))


def _examine(options: argparse.Namespace) -> None:
    model = convert.read(options.model)
    if options.output and (options.output.suffix != ".xml" or options.output.resolve() == options.model.resolve()):
        raise ValueError(f"{options.output} cannot be written. Give another file that ends with .xml.")
    print(convert.examined(model))
    if options.output:
        left = portable.wrong_on_arm(portable.lift_transposed_convolutions(model))
        ov.save_model(model, options.output, compress_to_fp16=False)
        print(f"{options.output}: {len(left)} left" + (", whose workarounds are in README.md" if left else ""))


if __name__ == "__main__":
    sys.exit(main())
