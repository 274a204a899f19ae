"""The published benchmark: `python -m notebooks.janus_pro.measuring.benchmark --task vlm -m FOLDER`.

Reports how long the pipeline takes to start and, of several rounds, the latency of the first token (from the picture
on), the tokens a second from the second one on, the latency of a whole answer or drawing, and the peak of memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
from PIL import Image

from notebooks.janus_pro.pipeline import Figures, Janus
from utils.bench import peak_bytes

TASKS = ("vlm", "t2i")  # answers, drawings
QUESTION, WISH = "What is in the picture?", "two red circles and a blue star"


def main(arguments: list[str] | None = None) -> int:
    """Print each round and the medians. Exit status 1 with a sentence where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.janus_pro.measuring.benchmark",
        description="Measure answers (vlm) or drawings (t2i).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--task", choices=TASKS, required=True, help="what to measure")
    parser.add_argument("-m", dest="model", metavar="FOLDER", required=True, help="the converted folder")
    parser.add_argument("-d", dest="device", default="CPU", help="OpenVINO's name of the device")
    parser.add_argument("--niter", type=int, default=5, help="rounds, after one that does not count")
    parser.add_argument("--image", metavar="PATH", help="a picture to ask about; without it, noise")
    parser.add_argument("--prompt", help=f"the question ({QUESTION!r}) or what to draw ({WISH!r})")
    parser.add_argument("--max-new-tokens", type=int, default=32, help="tokens of an answer, at most")
    given = parser.parse_args(arguments)
    if given.niter < 1:
        parser.error("--niter is the number of rounds, 1 or more")
    try:
        begin = perf_counter()
        janus = Janus(given.model, given.device)
        print(f"pipeline start: {perf_counter() - begin:.2f} s", flush=True)
        rounds = measured(call(janus, given), janus, given.niter)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(report(given.task, rounds)))
    print(f"peak memory of the process: {peak_bytes() / 1e6:.0f} MB")
    return 0


def call(janus: Janus, given: argparse.Namespace) -> Callable[[], object]:
    """One round of the task."""
    if given.task == "t2i":
        return lambda: janus.draw(given.prompt or WISH)
    noise = np.random.default_rng(0).integers(0, 256, (janus.image_size, janus.image_size, 3), dtype=np.uint8)
    picture = Path(given.image) if given.image else Image.fromarray(noise)
    return lambda: janus.understand(picture, given.prompt or QUESTION, max_new_tokens=given.max_new_tokens)


def measured(call: Callable[[], object], janus: Janus, rounds: int) -> list[Figures]:
    """The figures of each round; one before them warms up."""
    found = []
    for number in range(rounds + 1):
        call()
        if number:
            found.append(janus.figures)
            print(f"round {number}: {told(janus.figures)}", flush=True)
    return found


def told(figures: Figures) -> str:
    """A round in words."""
    rate = figures.tokens_per_second
    speed = f", then {rate:.1f} tokens/s" if rate else ""
    return f"first of {figures.generated} tokens after {1e3 * figures.first_token_s:.1f} ms{speed}"


def report(task: str, rounds: list[Figures]) -> list[str]:
    """The medians, a line each."""
    lines = [f"first token: {1e3 * np.median([x.first_token_s for x in rounds]):.1f} ms"]
    rates = [x.tokens_per_second for x in rounds if x.tokens_per_second]
    lines.append(f"from the second token on: {np.median(rates):.1f} tokens/s" if rates else "no second token to time")
    whole = f"{np.median([x.seconds for x in rounds]):.3f} s"
    if task == "vlm":
        return [
            *lines,
            f"seeing the picture: {1e3 * np.median([x.image_s for x in rounds]):.1f} ms",
            f"answer: {whole}",
        ]
    decoding = np.median([x.image_s for x in rounds])
    return [*lines, f"making a picture of the tokens: {1e3 * decoding:.1f} ms", f"image: {whole}"]


if __name__ == "__main__":
    sys.exit(main())
