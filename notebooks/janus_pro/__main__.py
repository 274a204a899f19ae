"""The command line: `python -m notebooks.janus_pro --image photo.jpg --prompt "What is this?"` answers a question, and
`python -m notebooks.janus_pro --draw "a red star" -o star.png` draws."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from notebooks.janus_pro.pipeline import Janus, Timings
from utils import command
from utils.files import replaced


def main(argv: list[str] | None = None) -> int:
    """Print the answer, or write the drawing. The exit status is 1 after an error, which is printed."""
    parser = command.parser(__package__, "Ask Janus-Pro about a picture, or have it draw one.")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--image", metavar="PATH", help="a picture to ask about")
    task.add_argument("--draw", metavar="PROMPT", help="what to draw")
    parser.add_argument("--prompt", metavar="QUESTION", help="what to ask about the picture")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="tokens of the answer, at most")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives another drawing")
    guidance = "scale of classifier-free guidance; 1 is none; without this option, the checkpoint's own"
    parser.add_argument("--guidance", type=float, help=guidance)
    parser.add_argument(
        "-o", "--output", default="drawing.png", metavar="PATH", help="the file to write the drawing to"
    )
    arguments = parser.parse_args(argv)
    if (arguments.image is None) != (arguments.prompt is None):
        parser.error("--image and --prompt belong together")
    return command.run(_answer if arguments.draw is None else _draw, arguments)


def _answer(arguments: argparse.Namespace) -> None:
    model = Janus(arguments.folder or command.tiny(__package__), arguments.device)

    def show(piece: str) -> None:
        print(piece, end="", flush=True)

    stream = None if model.answer_separator else show  # a checkpoint that reasons first writes its answer last
    answer = model.understand(arguments.image, arguments.prompt, stream, arguments.max_new_tokens)
    print(answer if model.answer_separator else "")
    if answer.reasoning:
        print(f"reasoning: {answer.reasoning}", file=sys.stderr)
    _print_timings(model.timings)


def _draw(arguments: argparse.Namespace) -> None:
    """Draw into a file, which appears whole or not at all."""
    path = Path(arguments.output)
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:  # before minutes of drawing
        raise ValueError(f"{path} has no known ending for a picture. Write it as .png, .jpg or .webp.")
    path.parent.mkdir(parents=True, exist_ok=True)
    model = Janus(arguments.folder or command.tiny(__package__), arguments.device)

    def show(tokens: np.ndarray) -> None:
        row, rest = divmod(tokens.shape[1], model.rows)
        if not rest:
            print(f"\rrow {row} of {model.rows}", end="\n" if row == model.rows else "", file=sys.stderr, flush=True)

    picture = model.draw(arguments.draw, arguments.seed, arguments.guidance, progress=show)[0]
    with replaced(path) as written:
        picture.save(written)
    print(path)
    _print_timings(model.timings)


def _print_timings(timings: Timings) -> None:
    for note in timings.notes:
        print(note, file=sys.stderr)
    speed = f"{timings.tokens_per_second:.1f} tokens/s" if timings.tokens_per_second else "no second token"
    cut = ", cut off: see --max-new-tokens" if timings.finish_reason == "length" else ""
    print(
        f"{timings.prompt_tokens} tokens read, the first of {timings.generated_tokens} after "
        f"{timings.first_token_s:.2f} s, then {speed}{cut}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
