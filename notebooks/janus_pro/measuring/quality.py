"""How many answers and drawings are correct: held-out pictures, wordings and pairs, at every precision.

`python -m notebooks.janus_pro.measuring.quality` writes all of it to results/examination/janus_pro.json, which takes
minutes. The notebook measures the few trials of `spot_check`.

No trial is among those that training was improved with. An answer is correct when it is the true one, letter for
letter. A drawing is correct when a checker of geometry alone (checker.py) finds on it what the prompt asked for, where
it asked for it, and nothing else. Negative controls show that the metrics can fail: no picture or another one, no
prompt or another one, and always the most frequent answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from notebooks.janus_pro import convert
from notebooks.janus_pro.data import (
    DEVELOPMENT,
    EXAMINATION,
    HELD_OUT_PAIRS,
    PROMPT_KINDS,
    QUESTION_KINDS,
    Prompt,
    held_out,
    held_out_prompts,
)
from notebooks.janus_pro.measuring.checker import fulfils
from notebooks.janus_pro.network.reference import Reference
from notebooks.janus_pro.pipeline import Janus
from utils import compare, report, select, weights
from utils.drawn_world.answers import (
    Trial,
    accuracy,
    blank_pictures,
    correct,
    most_frequent_answers,
    share_by_kind,
    swap_pictures,
)
from utils.drawn_world.questions import Question
from utils.models import parts

Example = tuple[Image.Image, Prompt]  # a correct drawing, its prompt
TRIALS, PROMPTS = 20, 6  # of each kind in the examination
MAX_ANSWER_TOKENS = 60  # reasons included
DRAWINGS_PER_PROMPT = 2
ALL = "all kinds"
GUIDANCES = {"guidance off": 1.0, "guidance 5": 5.0}  # in place of the checkpoint's own
MARGIN = 0.05  # how far below PyTorch an accuracy may be
ANSWER_GOAL = 0.9  # share of right answers at which they are useful
MIN_ROUND_TRIP = 0.8  # accuracy of answers about drawings; all values MIN_... are what the tiny checkpoint has to reach
# Shares of correct drawings. Another rounding leads to other drawings: the share of six dozen varies by up to 0.1, that
# of one kind by more.
MIN_CORRECT_DRAWINGS = dict.fromkeys(PROMPT_KINDS, 0.5) | {"new pair": 0.15, ALL: 0.7}
DRAWING_MARGINS = dict.fromkeys(PROMPT_KINDS, 0.3) | {ALL: 0.15}  # how far below PyTorch they may be
DRAWING_GOAL = 0.8  # share of correct drawings at which they are useful
MIN_RECOGNISED = 0.95  # share of correct drawings that the checker still accepts after the autoencoder
PSNR_MARGIN_DB = 0.5  # how far below PyTorch's the PSNR of the autoencoder may be
MIN_PSNR_DB = 20.0
MIN_AGREEMENT = 0.6  # of a greedy drawing's tokens with PyTorch's, up to the first that differs
ROUND_TRIP_KINDS = ("thing", "place", "count", "new pair")  # kinds of prompts whose drawings have an obvious question


class Drawing(NamedTuple):
    """A drawing and its prompt."""

    picture: Image.Image
    prompt: Prompt


# --- answers ------------------------------------------------------------------------------------------------------


def trials(count: int, kinds: Sequence[str] = QUESTION_KINDS, seed: int = EXAMINATION) -> list[Trial]:
    """`count` held-out trials of each kind. seed: EXAMINATION or DEVELOPMENT."""
    return [trial for kind in kinds for trial in held_out(kind, count, seed)]


def answers(model, trials: Sequence[Trial], label: str = "") -> list[str]:
    """The answer of a `pipeline.Janus` or a `Reference` to each trial; a bar shows the progress."""
    bar = tqdm(trials, desc=f"{label}, asking", mininterval=1, disable=None)
    return [
        str(model.understand(picture, question.text, max_new_tokens=MAX_ANSWER_TOKENS)) for picture, question in bar
    ]


# --- drawings -----------------------------------------------------------------------------------------------------


def prompts(count: int, kinds: Sequence[str] = PROMPT_KINDS, seed: int = EXAMINATION) -> list[Example]:
    """`count` held-out prompts of each kind, each with a correct drawing. seed: as of `trials`."""
    return [example for kind in kinds for example in held_out_prompts(kind, count, seed)]


def drawings(model, examples: Sequence[Example], guidance: float | None = None, label: str = "") -> list[Drawing]:
    """DRAWINGS_PER_PROMPT drawings of each prompt by a `pipeline.Janus` or a `Reference`; a bar shows the progress."""
    drawn = []
    for seed, (_, prompt) in enumerate(tqdm(examples, desc=f"{label}, drawing", mininterval=1, disable=None)):
        pictures = model.draw(prompt.text, seed, guidance, DRAWINGS_PER_PROMPT)
        drawn += [Drawing(picture, prompt) for picture in pictures]
    return drawn


def correct_drawings(drawn: Sequence[Drawing]) -> dict[str, float]:
    """The share of drawings that fulfil their prompts, by kind of prompt and of all."""
    successes = [fulfils(picture, prompt) for picture, prompt in drawn]
    return share_by_kind([drawing.prompt.kind for drawing in drawn], successes) | {ALL: float(np.mean(successes))}


def swap_prompts(drawn: Sequence[Drawing]) -> list[Drawing]:
    """A negative control: drawings of another sentence. Each gets the next different prompt of its kind, which it could
    fulfil by chance.
    """
    swapped = []
    for number, (picture, prompt) in enumerate(drawn):
        others = (x.prompt for x in [*drawn[number + 1 :], *drawn[:number]])
        swapped.append(Drawing(picture, next(x for x in others if x.kind == prompt.kind and x != prompt)))
    return swapped


def round_trip_trials(drawn: Sequence[Drawing]) -> list[Trial]:
    """Drawings of ROUND_TRIP_KINDS with a question about each that its prompt answers."""
    asked = []
    for picture, prompt in drawn:
        if prompt.kind not in ROUND_TRIP_KINDS:
            continue
        colour, shape = prompt.pairs[0]
        if prompt.kind == "place":
            text, answer = f"Where is the {shape}?", prompt.place
        elif prompt.kind == "count":
            text, answer = f"How many {colour} things are there?", str(len(prompt.pairs))
        else:
            text, answer = f"What colour is the {shape}?", colour
        asked.append((picture, Question(prompt.kind, text, answer)))
    return asked


def psnr(pictures: Sequence[Image.Image], true: Sequence[Image.Image]) -> float:
    """Peak signal-to-noise ratio in dB of pictures, over all of their pixels."""
    pairs = zip(pictures, true, strict=True)
    errors = [np.square(np.asarray(a, np.float64) - np.asarray(b, np.float64)).mean() for a, b in pairs]
    return float(10 * np.log10(255**2 / max(np.mean(errors), 1e-9)))


def agreement(tokens: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """The share of drawings' tokens [1, t] that are the same up to the first that differs."""
    same = [(a == b).ravel().cumprod().mean() for a, b in zip(tokens, reference, strict=True)]
    return float(np.mean(same))


def greedy(model, examples: Sequence[Example]) -> list[np.ndarray]:
    """The most probable tokens of a drawing of each prompt."""
    return [model.draw_tokens(prompt.text, temperature=0) for _, prompt in examples]


# --- the table ----------------------------------------------------------------------------------------------------


def table(
    models: Mapping[str, object], reference: Reference, asked: Sequence[Trial], examples: Sequence[Example]
) -> list:
    """Quality rows at each precision of `models` (`pipeline.Janus`), with the PyTorch reference and the controls.

    A threshold is the reference less a margin, or the minimum of its metric, where that is higher. The controls are run
    with the first of `models`.
    """
    return [
        *_answers_table(models, reference, asked),
        *_drawings_table(models, reference, examples),
        *_autoencoder_table(models, reference, examples),
        *_agreement_table(models, reference, examples),
    ]


def spot_check(
    models: Mapping[str, object], reference: Reference, asked: Sequence[Trial], examples: Sequence[Example]
) -> list[dict]:
    """Quality rows like those of `table`, of what a few trials can show: all questions together, and no shares of
    drawings. The greedy tokens say whether the models draw what PyTorch draws.
    """
    return [
        *_answers_table(models, reference, asked, overall_accuracy),
        *_autoencoder_table(models, reference, examples),
        *_agreement_table(models, reference, examples),
    ]


def overall_accuracy(answers: Sequence[str], trials: Sequence[Trial]) -> dict[str, float]:
    """The share of correct answers to all questions, with the key ALL."""
    return {ALL: float(np.mean(correct(answers, trials)))}


def _answers_table(
    models: Mapping, reference: Reference, asked: Sequence[Trial], score: Callable = accuracy
) -> list[dict]:
    first = next(iter(models.values()))
    baseline = score(answers(reference, asked, "PyTorch"), asked)
    values = {name: score(answers(model, asked, name), asked) for name, model in models.items()}
    controls = {
        "blank picture": score(answers(first, blank_pictures(asked), "blank picture"), asked),
        "another picture": score(answers(first, swap_pictures(asked), "another picture"), asked),
        "the most frequent answer": score(most_frequent_answers(asked), asked),
    }
    thresholds = {kind: value - MARGIN for kind, value in baseline.items()}
    kinds = Counter(question.kind for _, question in asked)
    counts = {kind: kinds.get(kind, len(asked)) for kind in baseline}
    return _by_kind("accuracy, {}", values, baseline, controls, thresholds, counts, ANSWER_GOAL)


def _drawings_table(models: Mapping, reference: Reference, examples: Sequence[Example]) -> list[dict]:
    # Are the drawings what the prompts asked for?
    first = next(iter(models))
    drawn_by_reference = drawings(reference, examples, label="PyTorch")
    baseline = correct_drawings(drawn_by_reference)
    thresholds = {
        kind: max(value - DRAWING_MARGINS[kind], MIN_CORRECT_DRAWINGS[kind]) for kind, value in baseline.items()
    }
    drawn = {name: drawings(model, examples, label=name) for name, model in models.items()}
    controls = {
        "no sentence": correct_drawings(drawings(models[first], examples, 0.0, "no sentence")),
        "another sentence": correct_drawings(swap_prompts(drawn[first])),
    }
    values = {name: correct_drawings(own) for name, own in drawn.items()}
    kinds = Counter(drawing.prompt.kind for drawing in drawn_by_reference)
    counts = {kind: kinds.get(kind, len(drawn_by_reference)) for kind in baseline}
    rows = _by_kind("drawings, {}", values, baseline, controls, thresholds, counts, DRAWING_GOAL)
    for name, strength in GUIDANCES.items():
        share = correct_drawings(drawings(models[first], examples, strength, name))[ALL]
        rows.append(compare.quality(f"drawings, {name}", first, share, None, None, "higher", of=counts[ALL]))

    # Does a model answer questions about its own drawings?
    def round_trip(model, trials: Sequence[Trial], label: str) -> dict[str, float]:
        return {"": float(np.mean(correct(answers(model, trials, label), trials)))}

    baseline = round_trip(reference, round_trip_trials(drawn_by_reference), "PyTorch")
    values = {name: round_trip(model, round_trip_trials(drawn[name]), name) for name, model in models.items()}
    other = round_trip(models[first], swap_pictures(round_trip_trials(drawn[first])), "another drawing")
    thresholds = {"": max(baseline[""] - DRAWING_MARGINS[ALL], MIN_ROUND_TRIP)}  # as many drawings, as much variance
    counts = {"": len(round_trip_trials(drawn_by_reference))}
    return rows + _by_kind("round trip{}", values, baseline, {"another drawing": other}, thresholds, counts)


def _autoencoder_table(models: Mapping, reference: Reference, examples: Sequence[Example]) -> list[dict]:
    """Rows of the first of `models` alone: the decoder of pictures is never compressed."""
    first, model = next(iter(models.items()))
    true = [picture for picture, _ in examples]
    tokens = reference.encode(true)
    noise, recognised = "reconstruction, PSNR (dB)", "reconstruction, still right"
    decoded_by_reference = reference.decode(tokens)
    baseline = psnr(decoded_by_reference, true)
    threshold = max(baseline - PSNR_MARGIN_DB, MIN_PSNR_DB)

    def recognition(decoded: Sequence[Image.Image]) -> float:
        pairs = zip(decoded, examples, strict=True)
        return correct_drawings([Drawing(picture, prompt) for picture, (_, prompt) in pairs])[ALL]

    decoded, still_right = model.decode(tokens), recognition(decoded_by_reference)
    swapped = [*decoded[1:], decoded[0]]
    return [
        compare.quality(noise, first, psnr(decoded, true), baseline, threshold, "higher"),
        compare.control(noise, "another picture", psnr(swapped, true), threshold, "higher"),
        compare.quality(recognised, first, recognition(decoded), still_right, MIN_RECOGNISED, "higher"),
        compare.control(recognised, "another picture", recognition(swapped), MIN_RECOGNISED, "higher"),
    ]


def _agreement_table(models: Mapping, reference: Reference, examples: Sequence[Example]) -> list[dict]:
    metric, some = "greedy tokens equal to PyTorch's", examples[:: max(1, len(examples) // 6)]
    expected = greedy(reference, some)
    tokens = {name: greedy(model, some) for name, model in models.items()}
    rows = [
        compare.quality(metric, name, agreement(own, expected), 1.0, MIN_AGREEMENT, "higher")
        for name, own in tokens.items()
    ]
    first = next(iter(tokens.values()))
    swapped = agreement([*first[1:], first[0]], expected)
    return [*rows, compare.control(metric, "another sentence", swapped, MIN_AGREEMENT, "higher")]


def _by_kind(
    metric: str,
    values: Mapping[str, Mapping[str, float]],
    baseline: Mapping[str, float],
    controls: Mapping[str, Mapping[str, float]],
    thresholds: Mapping[str, float],
    counts: Mapping[str, int],
    goal: float | None = None,
) -> list[dict]:
    """Rows of each kind: those of `values` by precision, then the controls; counts: of the trials of a kind."""
    rows = []
    for kind, reference in baseline.items():
        name, threshold = metric.format(kind), thresholds[kind]
        rows += [
            compare.quality(name, precision, x[kind], reference, threshold, "higher", goal=goal, of=counts[kind])
            for precision, x in values.items()
        ]
        rows += [compare.control(name, control, x[kind], threshold, "higher") for control, x in controls.items()]
    return rows


def summary(model) -> str:
    """The shares of correct answers and drawings of development, in a line; for the end of training."""
    asked, examples = trials(40, seed=DEVELOPMENT), prompts(len(HELD_OUT_PAIRS), seed=DEVELOPMENT)
    results = {
        "answers": accuracy(answers(model, asked), asked),
        "drawings": correct_drawings(drawings(model, examples)),
    }
    return "Held out, right: " + "; ".join(
        f"{task}: " + ", ".join(f"{kind} {share:.0%}" for kind, share in by_kind.items())
        for task, by_kind in results.items()
    )


def main() -> None:
    """Examine every precision and write the results."""
    model = select.model(list(convert.MODELS)).value
    reference = Reference(weights.resolve(convert.MODELS[model]["checkpoint"]))
    models = {precision: Janus(convert.prepare(model, precision)) for precision in parts.PRECISIONS}
    report.save_examination("janus_pro", model, table(models, reference, trials(TRIALS), prompts(PROMPTS)))


if __name__ == "__main__":
    main()
