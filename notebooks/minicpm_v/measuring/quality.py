"""How many answers are correct: held-out pictures and wordings, questions of every kind, at every precision.

A trial is a picture and a question that are not in training, and not among those that training was improved with. An
answer is correct when it is the true one, letter for letter. Negative controls show that the metrics can fail: no
picture, another one, small words without slicing, and always the most frequent answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from PIL import Image
from tqdm import tqdm

from notebooks.minicpm_v import convert
from notebooks.minicpm_v.data import EXAMINATION, held_out
from notebooks.minicpm_v.network.reference import Reference
from notebooks.minicpm_v.pipeline import VisionChat
from utils import compare, report, select, weights
from utils.drawn_world.answers import Trial, accuracy, blank_pictures, most_frequent_answers, swap_pictures
from utils.drawn_world.questions import KINDS
from utils.models import parts

Ask = Callable[[Image.Image, str, bool], str]  # picture, question, whether to slice -> all that the model wrote
MAX_ANSWER_TOKENS = 40  # reasons included
TRIALS = 100  # of each kind in the examination
SMALL_WORDS = "label"  # the kind that slicing is for
MARGIN = 0.05  # how far below PyTorch an accuracy may be
GOALS = dict.fromkeys(KINDS, 0.9) | {SMALL_WORDS: 0.85}  # accuracies from which on answers are useful
MIN_AGREEMENT = 0.85  # of the tokens with PyTorch's
AGREEMENT_METRIC = "token agreement with PyTorch"


def trials(count: int = 40, kinds: Sequence[str] = KINDS) -> list[Trial]:
    """`count` held-out trials of each kind."""
    return [trial for kind in kinds for trial in held_out(kind, count, EXAMINATION)]


def asking(chat) -> Ask:
    """A function that asks a `pipeline.VisionChat` or a `Reference` a question in a new conversation, for its text."""
    options = {"max_new_tokens": MAX_ANSWER_TOKENS}
    return lambda picture, text, slicing: chat.ask(picture, text, slicing=slicing, **options).text


def answers(ask: Ask, trials: Sequence[Trial], slicing: bool = True, label: str = "") -> list[str]:
    """The answer to each trial; a bar shows the progress."""
    return [
        ask(picture, question.text, slicing)
        for picture, question in tqdm(trials, desc=label, mininterval=1, disable=None)
    ]


def agreement(answers: Sequence[str], reference: Sequence[str], token_ids: Callable[[str], Sequence[int]]) -> float:
    """The share of tokens that are the same up to the first that differs, of the longer one of each two answers.

    token_ids: a function from a text to its token ids.
    """
    same = total = 0
    for tokens, expected in zip(map(token_ids, answers), map(token_ids, reference), strict=True):
        pairs = list(zip(tokens, expected, strict=False))
        same += next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
        total += max(len(tokens), len(expected))
    return same / total if total else 1.0


def table(
    trials: Sequence[Trial],
    asks: Mapping[str, Ask],
    reference: Ask,
    token_ids: Callable[[str], Sequence[int]],
) -> list[dict]:
    """Quality rows of every kind at each precision of `asks`, with the unquantised PyTorch reference and the controls.

    A threshold is the reference less MARGIN. The controls are run with the first of `asks`. token_ids: see `agreement`.
    """
    # Answers of the reference, of each precision and of the controls
    first = next(iter(asks.values()))
    expected = answers(reference, trials, label="PyTorch")
    by_precision = {precision: answers(ask, trials, label=precision) for precision, ask in asks.items()}
    another_picture = answers(first, swap_pictures(trials), label="another picture")
    small = [trial for trial in trials if trial[1].kind == SMALL_WORDS]
    controls = {
        "blank picture": accuracy(answers(first, blank_pictures(trials), label="blank picture"), trials),
        "another picture": accuracy(another_picture, trials),
        "the most frequent answer": accuracy(most_frequent_answers(trials), trials),
        "slicing off": accuracy(answers(first, small, slicing=False, label="slicing off"), small),
    }

    # Accuracy by kind
    baseline = accuracy(expected, trials)
    values = {precision: accuracy(own, trials) for precision, own in by_precision.items()}
    counts = Counter(question.kind for _, question in trials)
    rows = []
    for kind, value in baseline.items():
        metric, threshold = f"accuracy, {kind}", value - MARGIN
        for precision, shares in values.items():
            options = {"goal": GOALS[kind], "of": counts[kind]}
            rows.append(compare.quality(metric, precision, shares[kind], value, threshold, "higher", **options))
        for control, shares in controls.items():
            if kind in shares:
                rows.append(compare.control(metric, control, shares[kind], threshold, "higher"))

    # Agreement of the tokens
    for precision, own in by_precision.items():
        share = agreement(own, expected, token_ids)
        rows.append(compare.quality(AGREEMENT_METRIC, precision, share, 1.0, MIN_AGREEMENT, "higher"))
    share = agreement(another_picture, expected, token_ids)
    return [*rows, compare.control(AGREEMENT_METRIC, "another picture", share, MIN_AGREEMENT, "higher")]


def main() -> None:
    """Examine every precision and write the results."""
    model = select.model(list(convert.MODELS)).value
    reference = Reference(weights.resolve(convert.MODELS[model]["checkpoint"]))
    asks = {name: asking(VisionChat(convert.prepare(model, name))) for name in parts.PRECISIONS}
    rows = table(trials(TRIALS), asks, asking(reference), reference.token_ids)
    report.save_examination("minicpm_v", model, rows)


if __name__ == "__main__":
    main()
