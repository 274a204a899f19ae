"""`python -m notebooks.llm_from_opset CHECKPOINT FOLDER --precision INT4`: convert a checkpoint without PyTorch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from notebooks.llm_from_opset.convert import add_tokenizer
from notebooks.llm_from_opset.pipeline import PRECISIONS, Checkpoint, convert
from utils import command


def main(arguments: list[str] | None = None) -> int:
    """Write an IR folder for openvino_genai. Returns the exit status: 1 after bad input, with a message."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="Convert a language model.")
    parser.add_argument("checkpoint", type=Path, help="a folder with config.json and *.safetensors")
    parser.add_argument("folder", type=Path, help="where to write the model and its tokenizer")
    parser.add_argument("--precision", choices=PRECISIONS, default="INT8", help="of the weights (default: INT8)")
    parser.add_argument("--group-size", type=int, default=64, help="weights that share a scale at INT4 (default: 64)")
    parser.add_argument("--remote-code", action="store_true", help="run the checkpoint's own tokenizer code")
    return command.run(write, parser.parse_args(arguments))


def write(options: argparse.Namespace) -> None:
    Checkpoint(options.checkpoint)  # what is no checkpoint, or has a tokenizer that nobody can read, fails at once
    options.folder.mkdir(parents=True, exist_ok=True)
    add_tokenizer(options.checkpoint, options.folder, options.remote_code)
    convert(options.checkpoint, options.folder, options.precision, options.group_size)
    print(f"Written to {options.folder}.")


if __name__ == "__main__":
    sys.exit(main())
