"""The command line: `python -m notebooks.dynamic_shapes model.xml` measures what a new input length costs a model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import openvino as ov

from notebooks.dynamic_shapes.measuring import CAPACITY, new_lengths, sized
from utils import command, preflight

CAPACITIES = ("5000", "300", "0")  # OpenVINO's own, one for lengths that cannot be padded, none


def main(arguments: list[str] | None = None) -> int:
    """Print the costs for each of CAPACITIES; the exit status is 1 after an error, whose message is printed."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="Measure the cost of new lengths.")
    parser.add_argument("model", type=Path, help="an IR (.xml) or ONNX file with a dynamic length")
    parser.add_argument("--lengths", type=int, nargs=2, default=(40, 80), metavar=("FIRST", "END"),
                        help="call it with FIRST to END - 1 (default: 40 80)")  # fmt: skip
    parser.add_argument("--multiple", action="append", default=[], metavar="INPUT=K",
                        help="an input whose length is K times that of the others; may be repeated")  # fmt: skip
    return command.run(_measure, parser.parse_args(arguments))


def _measure(options: argparse.Namespace) -> None:
    multiples = dict(_multiple(text) for text in options.multiple)
    first, end = options.lengths
    if not 0 < first < end:
        raise ValueError(f"There are no lengths from {first} to {end - 1}. Give two from 1 on, the smaller one first.")
    if not options.model.is_file():
        raise ValueError(f"There is no model {options.model}. Give an .xml or .onnx file.")
    model = ov.Core().read_model(options.model)
    if not any(port.get_partial_shape().is_dynamic for port in model.inputs):
        raise ValueError(f"{options.model} has no dynamic input, so no new length can come. Nothing to measure.")
    sized(model, first, multiples=multiples)  # a wrong name of an input is told here
    print("capacity  first call, ms  second call, ms  MB for each length")
    for capacity in CAPACITIES:
        properties = {CAPACITY: capacity}
        called = preflight.in_child(new_lengths, options.model, properties, range(first, end), multiples)
        once, again = (f"{np.median(times):.1f}" for times in called[:2])
        print(f"{capacity:8}  {once:>14}  {again:>15}  {called[2]:18.2f}")


def _multiple(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isdecimal() or not int(number):
        raise ValueError(f"{text!r} is no multiple. Write it as noise=2.")
    return name, int(number)


if __name__ == "__main__":
    sys.exit(main())
