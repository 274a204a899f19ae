"""The command line: `python -m notebooks.sdpa_enabling model.xml` says which attention of a model is fused before and
after the passes; `-o fused.xml` writes the changed model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import openvino as ov

from notebooks.sdpa_enabling.pipeline import analyse
from utils import command
from utils.models.llm import MODEL_XML


def main(arguments: list[str] | None = None) -> int:
    """Print the report, and write the model if asked; the exit status is 1 after an error, whose message is printed."""
    parser = command.parser(__package__, "Fuse the attention of an OpenVINO or ONNX model: a file, or a folder.")
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help="the .xml file to write the changed model to")
    return command.run(_analyse, parser.parse_args(arguments))


def _analyse(options: argparse.Namespace) -> None:
    path = Path(options.folder or command.tiny(__package__))
    path = path / MODEL_XML if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"There is no model {path}. Give a file (.xml or .onnx), or a folder with {MODEL_XML}.")
    if options.output and (options.output.suffix != ".xml" or options.output.resolve() == path.resolve()):
        raise ValueError(f"{options.output} cannot be written. Give another file that ends with .xml.")
    model, report = analyse(path, options.device)
    print(report)
    if options.output:
        ov.save_model(model, options.output, compress_to_fp16=False)
        print(options.output)


if __name__ == "__main__":
    sys.exit(main())
