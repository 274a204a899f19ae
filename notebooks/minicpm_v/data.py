"""Pictures of the drawn world (`utils.drawn_world.scenes`): small ones, and large ones with small words.

The small words can be read in slices only. Scenes, printed words and wordings of questions are held out for tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from utils.drawn_world.questions import HELD_OUT_WORDINGS, KINDS, Question, ask
from utils.drawn_world.scenes import LETTERS, Scene, draw, random_scene

SIDE_PX = 112  # pictures up to SIDE_PX x SIDE_PX stay whole, larger ones are sliced
WORD_LENGTHS = (3, 5)  # letters, from and to
LABEL_HEIGHTS_PX = (15.0, 17.0)  # from line to line: letters have 10 or 11 pixels, and 3 to 5 in the overview
HELD_OUT_WORDS = (  # printed in tests only; training prints random letters
    "BIRD BOAT BOOK BREAD CAKE CLOCK CLOUD COAST COIN CROWN DESK DOOR DRUM EAGLE EARTH FIELD FLAME FROST GLASS GRAPE"
).split()


def word(rng: np.random.Generator) -> str:
    """Random letters, never one of HELD_OUT_WORDS."""
    while True:
        text = "".join(rng.choice(list(LETTERS), size=rng.integers(WORD_LENGTHS[0], WORD_LENGTHS[1] + 1)))
        if text not in HELD_OUT_WORDS:
            return text


def small_scene(rng: np.random.Generator, written: str = "") -> Scene:
    """A scene that stays whole; half of them have a sign."""
    if written or rng.random() < 0.5:
        return random_scene(rng, SIDE_PX, SIDE_PX, things=(1, 5), sign=written or word(rng))
    return random_scene(rng, SIDE_PX, SIDE_PX, things=(1, 6))


def large_scene(rng: np.random.Generator, written: Sequence[str] = ()) -> Scene:
    """A scene of five to nine slices, with small words under two to four things."""
    while True:
        width, height = (int(x) for x in rng.integers(2 * SIDE_PX - 14, 3 * SIDE_PX + 1, size=2))
        if 4 < width * height / SIDE_PX**2 <= 9:
            break
    labels = tuple(written) or tuple(word(rng) for _ in range(rng.integers(2, 5)))
    tall = float(np.round(rng.uniform(*LABEL_HEIGHTS_PX)))
    return random_scene(rng, width, height, things=(2, 5), labels=labels, label_height=tall)


def held_out(kind: str, count: int, seed: int = 1) -> list[tuple[Image.Image, Question]]:
    """Pictures and questions of one kind, with scenes, wordings and printed words that are not in training.

    Questions about labels come with large pictures, all others with small ones.
    """
    trials: list[tuple[Image.Image, Question]] = []
    number = 0
    while len(trials) < count:
        rng = np.random.default_rng([seed, KINDS.index(kind), number, 7])  # training's seeds are of two numbers
        number += 1
        if kind == "label":
            scene = large_scene(
                rng, [str(x) for x in rng.choice(HELD_OUT_WORDS, size=rng.integers(2, 5), replace=False)]
            )
        else:
            scene = small_scene(rng, str(rng.choice(HELD_OUT_WORDS)) if kind == "sign" else "")
        question = ask(scene, kind, rng, HELD_OUT_WORDINGS)
        if question:
            trials.append((draw(scene), question))
    return trials
