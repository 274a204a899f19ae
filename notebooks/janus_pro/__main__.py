"""Pictures from a shell: `python -m notebooks.janus_pro FOLDER --image photo.jpg --prompt "What is this?"`, and
`python -m notebooks.janus_pro FOLDER --draw "a red ball" -o ball.png`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from notebooks.janus_pro.pipeline import Janus


def main(arguments: list[str] | None = None) -> int:
    """Print the answer as it comes, or write the drawing. Exit status 1 with a sentence where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.janus_pro",
        description="Ask Janus-Pro about a picture, or have it draw one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", nargs="?", help="the converted folder; without it, the tiny one of this repository")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--image", metavar="PATH", help="a picture to ask about")
    task.add_argument("--draw", metavar="PROMPT", help="what to draw")
    parser.add_argument("--prompt", metavar="QUESTION", help="what to ask about the picture")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="tokens of the answer, at most")
    parser.add_argument("--seed", type=int, default=0, help="another one makes another drawing")
    guidance = "how much more to follow the words; 1 just does, and without it, it is the model's own"
    parser.add_argument("--guidance", type=float, help=guidance)
    parser.add_argument("-o", default="drawing.png", metavar="PATH", help="the file that the drawing is written to")
    parser.add_argument("--device", default="CPU", help="OpenVINO's name of the device")
    given = parser.parse_args(arguments)
    if (given.image is None) != (given.prompt is None):
        parser.error("--image and --prompt belong together")
    try:
        if given.draw is None:
            figures = _answer(given)
        else:
            figures = _draw(given, Path(given.o))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for note in figures.notes:
        print(note, file=sys.stderr)
    speed = f"{figures.tokens_per_second:.1f} tokens/s" if figures.tokens_per_second else "no speed to tell"
    cut = ", cut off: see --max-new-tokens" if figures.ended == "length" else ""
    print(
        f"{figures.read} tokens read, the first of {figures.generated} after {figures.first_token_s:.2f} s, "
        f"then {speed}{cut}",
        file=sys.stderr,
    )
    return 0


def _answer(given: argparse.Namespace):
    model = Janus(given.model or _prepared(), given.device)

    def show(piece: str) -> None:
        print(piece, end="", flush=True)

    model.understand(given.image, given.prompt, show, given.max_new_tokens)
    print()
    return model.figures


def _draw(given: argparse.Namespace, path: Path):
    """Draw into a file, which appears whole or not at all."""
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:  # told before minutes of drawing
        raise ValueError(f"{path} has no known ending for a picture. Write it as .png, .jpg or .webp.")
    path.parent.mkdir(parents=True, exist_ok=True)
    model = Janus(given.model or _prepared(), given.device)

    def show(tokens: np.ndarray) -> None:
        row, rest = divmod(tokens.shape[1], model.rows)
        if not rest:
            print(f"\rrow {row} of {model.rows}", end="\n" if row == model.rows else "", file=sys.stderr, flush=True)

    picture = model.draw(given.draw, given.seed, given.guidance, progress=show)[0]
    with TemporaryDirectory(prefix=".partial-", dir=path.parent) as folder:
        written = Path(folder, path.name)
        picture.save(written)
        os.replace(written, path)
    print(path)
    return model.figures


def _prepared() -> Path:
    """The tiny model's folder; only here PyTorch is needed."""
    from notebooks.janus_pro import convert

    return convert.prepare()


if __name__ == "__main__":
    sys.exit(main())
