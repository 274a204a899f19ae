"""`python -m notebooks.minicpm_v FOLDER -pic photo.jpg -p "What is this?"`: questions about pictures, from a shell."""

from __future__ import annotations

import argparse
import sys

from notebooks.minicpm_v.pipeline import VisionChat
from utils import command


def main(argv: list[str] | None = None) -> int:
    """Print the answer as it comes. The exit status is 1 after an error, whose message is printed."""
    parser = command.parser(__package__, "Ask MiniCPM-V about pictures.")
    parser.add_argument("-pic", action="append", default=[], metavar="PATH", help="a picture; may be given again")
    parser.add_argument("-p", required=True, metavar="QUESTION", help="what to ask")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="tokens of the answer, at most")
    parser.add_argument("--no-slicing", action="store_true", help="read large pictures only as a whole, made small")
    return command.run(_answer, parser.parse_args(argv))


def _answer(arguments: argparse.Namespace) -> None:
    chat = VisionChat(arguments.folder or command.tiny(__package__), arguments.device)

    def show(piece: str) -> None:
        print(piece, end="", flush=True)

    chat.ask(arguments.pic, arguments.p, None, arguments.max_new_tokens, show, not arguments.no_slicing)
    print()
    timings = chat.timings
    for note in timings.notes:
        print(note, file=sys.stderr)
    speed = f"{timings.tokens_per_second:.1f} tokens/s" if timings.tokens_per_second else "no speed to tell"
    cut = ", cut off: see --max-new-tokens" if timings.finish_reason == "length" else ""
    print(
        f"{timings.slices} slices in {timings.image_s:.2f} s, {timings.prompt_tokens} tokens read, the first of "
        f"{timings.generated_tokens} after {timings.first_token_s:.2f} s, then {speed}{cut}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
