"""The command line: `python -m notebooks.minicpm_v --image photo.jpg --prompt "What is this?"` answers a question."""

from __future__ import annotations

import argparse
import sys

from notebooks.minicpm_v.pipeline import VisionChat
from utils import command


def main(argv: list[str] | None = None) -> int:
    """Print the answer. The exit status is 1 after an error, whose message is printed."""
    parser = command.parser(__package__, "Ask MiniCPM-V about pictures.")
    parser.add_argument("--image", action="append", default=[], metavar="PATH", help="a picture; may be given again")
    parser.add_argument("--prompt", required=True, metavar="QUESTION", help="what to ask about the pictures")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="tokens of the answer, at most")
    parser.add_argument("--no-slicing", action="store_true", help="read large pictures only as a whole, made small")
    return command.run(_answer, parser.parse_args(argv))


def _answer(arguments: argparse.Namespace) -> None:
    chat = VisionChat(arguments.folder or command.tiny(__package__), arguments.device)

    def show(piece: str) -> None:
        print(piece, end="", flush=True)

    stream = None if chat.answer_separator else show  # a checkpoint that reasons first writes its answer last
    given = arguments.image, arguments.prompt, None, arguments.max_new_tokens
    answer = chat.ask(*given, stream, not arguments.no_slicing)
    print(answer if chat.answer_separator else "")
    if answer.reasoning:
        print(f"reasoning: {answer.reasoning}", file=sys.stderr)
    timings = chat.timings
    for note in timings.notes:
        print(note, file=sys.stderr)
    speed = f"{timings.tokens_per_second:.1f} tokens/s" if timings.tokens_per_second else "no second token"
    cut = ", cut off: see --max-new-tokens" if timings.finish_reason == "length" else ""
    print(
        f"{timings.slices} pieces in {timings.image_s:.2f} s, {timings.prompt_tokens} tokens read, the first of "
        f"{timings.generated_tokens} after {timings.first_token_s:.2f} s, then {speed}{cut}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
