"""The command line: `python -m notebooks.c_interop --language Rust "Once upon a time"` streams an answer of the program
in that language; `--list` says which languages can be used here."""

from __future__ import annotations

import argparse
import sys

from notebooks.c_interop.convert import clients, prepare
from utils import command


def main(arguments: list[str] | None = None) -> int:
    """Print the answer as it is made; the exit status is 1 after an error, whose message is printed."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="Answer through C, in any language.")
    parser.add_argument("prompt", nargs="?", default="Once upon a time", help="what to continue")
    parser.add_argument("--language", default="C", help=f"one of: {', '.join(clients.CLIENTS)}")
    parser.add_argument("--folder", help="the converted model; without it, the tiny one of this repository")
    parser.add_argument("--tokens", type=int, default=64, help="the most new tokens")
    parser.add_argument("--list", action="store_true", help="say which languages can be used here")
    return command.run(_answer, parser.parse_args(arguments))


def _answer(options: argparse.Namespace) -> None:
    if options.list:
        for language in clients.CLIENTS:
            print(clients.missing(language) or f"{language} is ready.")
        return
    if not options.prompt or options.tokens < 1:
        raise ValueError("Give a prompt that is not empty, and --tokens of 1 or more.")
    shown = ""
    for output in clients.stream(options.language, options.folder or prepare(), options.prompt, options.tokens):
        print(output.removeprefix(shown), end="", flush=True)
        shown = output


if __name__ == "__main__":
    sys.exit(main())
