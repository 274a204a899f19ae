"""The verdict on answers: who sees is right, who does not see is wrong, and the table can tell them apart."""

import pytest

from notebooks.minicpm_v.measuring import quality
from notebooks.minicpm_v.network.reference import Reference
from notebooks.minicpm_v.pipeline import Answer, VisionChat
from tests import examinations
from utils import compare, report
from utils.drawn_world.questions import KINDS
from utils.models import llm, parts


@pytest.fixture(scope="module")
def trials() -> list[quality.Trial]:
    return quality.trials(12)


class Knowing:
    """Knows the true answers by picture and question; without slicing it sees no small words."""

    def __init__(self, trials):
        self.truth = {(picture.tobytes(), question.text): question for picture, question in trials}
        self.asked = []

    def ask(self, picture, text, max_new_tokens, slicing):
        self.asked.append((picture, text, max_new_tokens, slicing))
        question = self.truth.get((picture.tobytes(), text))
        seen = question and (slicing or question.kind != quality.SMALL_WORDS)
        return Answer(f" {question.answer.upper()}.\n" if seen else "nothing")


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_there_are_trials_of_every_kind(trials):
    assert [question.kind for _, question in trials] == [kind for kind in KINDS for _ in range(12)]


def test_each_question_is_asked_greedily_in_a_conversation_of_its_own(trials):
    chat = Knowing(trials)
    said = quality.answers(quality.asking(chat), trials[:2], slicing=False)
    assert said[0].strip(" .\n") == trials[0][1].answer.upper()
    assert chat.asked == [(picture, q.text, quality.MAX_ANSWER_TOKENS, False) for picture, q in trials[:2]]


@pytest.mark.parametrize(
    ("said", "reference", "share"),
    [
        (["abc"], ["abc"], 1),
        (["abx"], ["abc"], 2 / 3),
        (["ab"], ["abcd"], 0.5),
        (["xbcd"], ["abcd"], 0),
        ([""], [""], 1),
    ],
)
def test_tokens_agree_up_to_the_first_that_differs(said, reference, share):
    assert quality.agreement(said, reference, letters) == pytest.approx(share)


def test_the_table_passes_who_sees_and_its_controls_lose(trials, tmp_path):
    ask = quality.asking(Knowing(trials))
    rows = quality.table(trials, {"FP32": ask, "INT4": ask}, ask, letters)
    compare.check(rows)
    for kind in KINDS:
        mine = [row for row in rows if row["metric"] == f"accuracy, {kind}"]
        controls = {row["control"] for row in mine if "control" in row}
        assert [row["precision"] for row in mine if "control" not in row] == ["FP32", "INT4"]
        others = {"blank picture", "another picture", "the most frequent answer"}
        assert controls == others | ({"slicing off"} if kind == "label" else set())
        assert {row["threshold"] for row in mine} == {1 - quality.MARGIN}
    assert {row["value"] for row in rows if row["metric"] == quality.AGREEMENT_METRIC and "control" not in row} == {1}
    report.save("minicpm_v", model="tiny", device="CPU", parity=[], quality=rows, speed=[], folder=tmp_path)


def test_the_table_fails_who_needs_no_slices_or_no_picture(trials):
    seeing = Knowing(trials)

    def ask(picture, text, slicing):
        return seeing.ask(picture, text, 16, True).text

    failing = [row for row in quality.table(trials, {"INT8": ask}, ask, letters) if compare.passes(row) is False]
    assert [(row["metric"], row["control"]) for row in failing] == [("accuracy, label", "slicing off")]
    blind = {question.text: question.answer for _, question in trials}

    def guess(picture, text, slicing):
        return blind[text]

    failing = [row for row in quality.table(trials, {"INT8": guess}, guess, letters) if compare.passes(row) is False]
    assert {row["control"] for row in failing} >= {"blank picture", "another picture", "slicing off"}


def test_the_table_fails_a_precision_that_is_wrong(trials):
    ask = quality.asking(Knowing(trials))
    rows = quality.table(trials, {"FP32": ask, "INT4": lambda *given: "nothing"}, ask, letters)
    failing = {(row["metric"], row["precision"]) for row in rows if compare.passes(row) is False}
    assert failing == {*((f"accuracy, {kind}", "INT4") for kind in KINDS), (quality.AGREEMENT_METRIC, "INT4")}


def test_who_is_as_wrong_as_the_reference_is_below_the_goal(trials):
    knowing, wrong = quality.asking(Knowing(trials)), {trial[1].text for trial in trials[::8]}

    def ask(picture, text, slicing):
        return "nothing" if text in wrong else knowing(picture, text, slicing)

    reached = quality.accuracy(quality.answers(ask, trials), trials)
    rows = quality.table(trials, {"FP16": ask}, ask, letters)
    assert all(compare.passes(row) for row in rows if "control" not in row)
    missed = {row["metric"] for row in rows if compare.below_goal(row)}
    assert missed == {f"accuracy, {kind}" for kind, x in reached.items() if x < quality.GOALS[kind]} != set()


def test_pytorch_and_the_pipeline_say_the_same(trials, checkpoint_2_6, ir_2_6):
    reference, chat = Reference(checkpoint_2_6), VisionChat(ir_2_6, **llm.FP32_PROPERTIES)
    some = [trials[0], trials[-1]]
    said = quality.answers(quality.asking(reference), some)
    assert said == quality.answers(quality.asking(chat), some) and len({*said, ""}) == 3
    whole = quality.answers(quality.asking(reference), some, slicing=False)
    assert whole == quality.answers(quality.asking(chat), some, slicing=False) and whole[1] != said[1]
    assert quality.agreement(said, said, reference.token_ids) == 1 > quality.agreement(whole, said, reference.token_ids)


def test_the_baseline_is_a_network_of_2_6(checkpoint_2_0):
    with pytest.raises(ValueError, match="is MiniCPM-V 2.0. Give one of 2.6"):
        Reference(checkpoint_2_0)


def test_the_examination_has_every_precision_and_the_stored_one_passes(trials, tmp_path):
    knowing, counts = Knowing(trials), []
    knowing.token_ids = letters
    stubs = {"Reference": lambda checkpoint: knowing, "VisionChat": lambda folder: knowing}
    stubs |= {"trials": lambda count: counts.append(count) or trials}
    stubs |= dict.fromkeys(("convert.prepare", "weights.resolve"), lambda *_: None)
    stored = examinations.check("minicpm_v", quality, stubs, tmp_path)
    assert counts == [quality.TRIALS]
    assert {row["precision"] for row in stored} == {*parts.PRECISIONS, None}
