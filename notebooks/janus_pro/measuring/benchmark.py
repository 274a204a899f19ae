"""The published benchmark: `python -m notebooks.janus_pro.measuring.benchmark --task vlm -m FOLDER`.

It reports how long the pipeline takes to start and the peak memory. Of several rounds it reports the latency of the
first token, the encoding of the picture included, the tokens a second after that, and the latency of the whole answer
or drawing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
from PIL import Image

from notebooks.janus_pro.pipeline import Janus, Timings
from utils.bench import peak_bytes

TASKS = ("vlm", "t2i")  # answers, drawings
DEFAULT_QUESTION, DEFAULT_PROMPT = "What is in the picture?", "two red circles and a blue star"


def main(argv: list[str] | None = None) -> int:
    """Print each round and the medians; the exit status is 1 after an error, whose message is printed."""
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
    parser.add_argument("--prompt", help=f"the question ({DEFAULT_QUESTION!r}) or what to draw ({DEFAULT_PROMPT!r})")
    parser.add_argument("--max-new-tokens", type=int, default=32, help="tokens of an answer, at most")
    arguments = parser.parse_args(argv)
    if arguments.niter < 1:
        parser.error("--niter is the number of rounds, 1 or more")
    try:
        begin = perf_counter()
        janus = Janus(arguments.model, arguments.device)
        print(f"pipeline start: {perf_counter() - begin:.2f} s", flush=True)
        rounds = measure(call(janus, arguments), janus, arguments.niter)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(report(arguments.task, rounds)))
    print(f"peak memory of the process: {peak_bytes() / 1e6:.0f} MB")
    return 0


def call(janus: Janus, arguments: argparse.Namespace) -> Callable[[], object]:
    """One round of the task."""
    if arguments.task == "t2i":
        return lambda: janus.draw(arguments.prompt or DEFAULT_PROMPT)
    noise = np.random.default_rng(0).integers(0, 256, (janus.image_size, janus.image_size, 3), dtype=np.uint8)
    picture = Path(arguments.image) if arguments.image else Image.fromarray(noise)
    return lambda: janus.understand(
        picture, arguments.prompt or DEFAULT_QUESTION, max_new_tokens=arguments.max_new_tokens
    )


def measure(call: Callable[[], object], janus: Janus, rounds: int) -> list[Timings]:
    """The timings of each round, after one round of warm-up."""
    timings = []
    for number in range(rounds + 1):
        call()
        if number:
            timings.append(janus.timings)
            print(f"round {number}: {describe(janus.timings)}", flush=True)
    return timings


def describe(timings: Timings) -> str:
    """A line about a round."""
    rate = timings.tokens_per_second
    speed = f", then {rate:.1f} tokens/s" if rate else ""
    return f"first of {timings.generated_tokens} tokens after {1e3 * timings.first_token_s:.1f} ms{speed}"


def report(task: str, rounds: list[Timings]) -> list[str]:
    """The medians, a line each."""
    lines = [f"first token: {1e3 * np.median([x.first_token_s for x in rounds]):.1f} ms"]
    rates = [x.tokens_per_second for x in rounds if x.tokens_per_second]
    lines.append(f"from the second token on: {np.median(rates):.1f} tokens/s" if rates else "no second token to time")
    whole = f"{np.median([x.total_s for x in rounds]):.3f} s"
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
