"""`python -m notebooks.minicpm_v FOLDER -pic photo.jpg -p "What is this?"`: questions about pictures, from a shell."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from notebooks.minicpm_v.pipeline import VisionChat


def main(arguments: list[str] | None = None) -> int:
    """Print the answer as it comes. Exit status 1 with a sentence where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.minicpm_v",
        description="Ask MiniCPM-V about pictures.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", nargs="?", help="the converted folder; without it, the tiny one of this repository")
    parser.add_argument("-pic", action="append", default=[], metavar="PATH", help="a picture; may be given again")
    parser.add_argument("-p", required=True, metavar="QUESTION", help="what to ask")
    parser.add_argument("--device", default="CPU", help="OpenVINO's name of the device")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="tokens of the answer, at most")
    parser.add_argument("--no-slicing", action="store_true", help="read large pictures only as a whole, made small")
    given = parser.parse_args(arguments)
    try:
        chat = VisionChat(given.model or _prepared(), given.device)

        def show(piece: str) -> None:
            print(piece, end="", flush=True)

        chat.ask(given.pic, given.p, None, given.max_new_tokens, show, not given.no_slicing)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print()
    figures = chat.figures
    for note in figures.notes:
        print(note, file=sys.stderr)
    speed = f"{figures.tokens_per_second:.1f} tokens/s" if figures.tokens_per_second else "no speed to tell"
    cut = ", cut off: see --max-new-tokens" if figures.ended == "length" else ""
    print(
        f"{figures.slices} slices in {figures.image_s:.2f} s, {figures.read} tokens read, the first of "
        f"{figures.generated} after {figures.first_token_s:.2f} s, then {speed}{cut}",
        file=sys.stderr,
    )
    return 0


def _prepared() -> Path:
    """The tiny model's folder; only here PyTorch is needed."""
    from notebooks.minicpm_v import convert

    return convert.prepare()


if __name__ == "__main__":
    sys.exit(main())
