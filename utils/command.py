"""What the commands `python -m notebooks.<case>` have in common."""

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from utils import paths


def parser(package: str, description: str) -> argparse.ArgumentParser:
    """A parser with the arguments `folder` and `--device`; package: the command's `__package__`."""
    result = argparse.ArgumentParser(
        prog=f"python -m {package}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    result.add_argument("folder", nargs="?", help="the converted model; without it, the tiny one of this repository")
    result.add_argument("--device", default="CPU", help="OpenVINO's name of the device")
    return result


def tiny(package: str, *arguments) -> Path:
    """What the notebook's `convert.prepare(*arguments)` returns. Nothing else in a command needs PyTorch."""
    case = paths.notebook_dir(package).name
    return importlib.import_module(f"notebooks.{case}.convert").prepare(*arguments)


def run(work: Callable, *arguments) -> int:
    """Call `work(*arguments)`; returns the exit status: 1 after a ValueError or OSError, whose message is printed."""
    try:
        work(*arguments)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
