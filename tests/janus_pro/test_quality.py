"""The verdict on answers and drawings: who sees and listens is right, who does not is wrong, and the table tells."""

import numpy as np
import pytest
from PIL import Image

from notebooks.janus_pro import data
from notebooks.janus_pro.measuring import quality
from notebooks.janus_pro.network.reference import Reference
from tests import examinations
from utils import compare, report
from utils.models import parts

DRAWN = [*data.PROMPT_KINDS, quality.ALL]
EVERY_KIND = [f"accuracy, {kind}" for kind in data.QUESTION_KINDS] + [f"drawings, {kind}" for kind in DRAWN]
TOKENS = "greedy tokens equal to PyTorch's"


@pytest.fixture(scope="module")
def asked() -> list[quality.Trial]:
    return quality.trials(8)


@pytest.fixture(scope="module")
def examples() -> list[quality.Example]:
    return quality.prompts(6)


class Knowing:
    """Knows the true answers and draws the true pictures; its "tokens" are numbers of those."""

    def __init__(self, asked, examples):
        self.truth = {(picture.tobytes(), question.text): question.answer for picture, question in asked}
        self.pictures = [picture for picture, _ in examples]
        self.numbers = {prompt.text: number for number, (_, prompt) in enumerate(examples)}
        self.back = {}
        for drawn, question in quality.round_trip_trials([quality.Drawing(*prompt) for prompt in examples]):
            self.back[drawn.tobytes(), question.text] = question.answer

    def understand(self, picture, text, max_new_tokens):
        assert max_new_tokens == quality.MAX_ANSWER_TOKENS
        key = picture.tobytes(), text
        answer = self.truth.get(key) or self.back.get(key)
        return f" top left: {answer.upper()}.\n" if answer else "nothing"

    def draw(self, text, seed, guidance, n):
        white = Image.new("RGB", (96, 96), "white")
        return [white if guidance == 0 else self.pictures[self.numbers[text]]] * n

    def draw_tokens(self, text, temperature):
        assert temperature == 0
        return np.full((1, 9), self.numbers[text])

    def encode(self, true):
        return np.array([[self.pictures.index(picture)] for picture in true])

    def decode(self, tokens):
        return [self.pictures[number] for number in tokens[:, 0]]


@pytest.fixture
def knowing(asked, examples):
    return Knowing(asked, examples)


def failing(rows) -> set[tuple]:
    return {(row["metric"], row["precision"] or row["control"]) for row in rows if compare.passes(row) is False}


def test_there_are_trials_and_wishes_of_every_kind(asked, examples):
    assert [question.kind for _, question in asked] == [kind for kind in data.QUESTION_KINDS for _ in range(8)]
    assert [prompt.kind for _, prompt in examples] == [kind for kind in data.PROMPT_KINDS for _ in range(6)]


def test_a_drawing_is_right_if_it_shows_what_was_asked_for(examples):
    made = [quality.Drawing(*prompt) for prompt in examples]
    assert set(quality.correct_drawings(made).values()) == {1.0}
    other = quality.swap_prompts(made)
    assert [drawing.prompt.kind for drawing in other] == [drawing.prompt.kind for drawing in made]
    assert not any(a.prompt == b.prompt for a, b in zip(made, other, strict=True))
    assert max(quality.correct_drawings(other).values()) < 0.5


def test_questions_back_are_true_of_the_sentence(examples):
    asked = quality.round_trip_trials([quality.Drawing(*prompt) for prompt in examples])
    assert {question.kind for _, question in asked} == set(quality.ROUND_TRIP_KINDS) and len(asked) == 24
    for picture, question in asked:
        prompt = next(prompt for true, prompt in examples if true is picture)
        answers = {"place": prompt.place, "count": str(len(prompt.pairs))}
        assert question.answer == answers.get(prompt.kind, prompt.pairs[0][0])
        assert any(part in question.text for part in prompt.pairs[0])


def test_noise_is_measured_in_decibels():
    grey, darker = Image.new("RGB", (8, 8), (128,) * 3), Image.new("RGB", (8, 8), (118,) * 3)
    assert quality.psnr([grey], [darker]) == pytest.approx(10 * np.log10(255**2 / 100))
    assert quality.psnr([grey, grey], [darker, grey]) == pytest.approx(10 * np.log10(255**2 / 50))
    assert quality.psnr([grey], [grey]) > 100


def test_tokens_agree_up_to_the_first_that_differs():
    one = np.array([[1, 2, 3, 4]])
    assert quality.agreement([one, one], [one, np.array([[1, 9, 3, 4]])]) == pytest.approx((1 + 0.25) / 2)


def test_the_table_passes_who_sees_and_listens_and_its_controls_lose(asked, examples, knowing, tmp_path):
    rows = quality.table({"FP16": knowing, "INT4": knowing}, knowing, asked, examples)
    compare.check(rows)
    for metric in EVERY_KIND:
        mine = [row for row in rows if row["metric"] == metric]
        assert [row["precision"] for row in mine if "control" not in row] == ["FP16", "INT4"]
        losers = {"blank picture", "another picture", "the most frequent answer"}
        losers = losers if metric.startswith("accuracy") else {"no sentence", "another sentence"}
        assert {row["control"] for row in mine if "control" in row} == losers
    for name in quality.GUIDANCES:
        (row,) = [row for row in rows if row["metric"] == f"drawings, {name}"]
        assert (row["threshold"], row["of"], row["precision"]) == (None, 72, "FP16")
    assert {row["of"] for row in rows if row["metric"] == "accuracy, count" and "of" in row} == {8}
    assert {row["of"] for row in rows if row["metric"] == "drawings, thing" and "of" in row} == {12}
    assert {row["metric"] for row in rows if "goal" in row} == {*EVERY_KIND}
    assert {row["metric"] for row in rows} > {"round trip", TOKENS, "reconstruction, PSNR (dB)"}
    report.save("janus_pro", model="tiny", device="CPU", parity=[], quality=rows, speed=[], folder=tmp_path)


class Wrong(Knowing):
    def understand(self, picture, text, max_new_tokens):
        return "nothing"

    def draw(self, text, seed, guidance, n):
        return [Image.new("RGB", (96, 96), "white")] * n

    def draw_tokens(self, text, temperature):
        return np.full((1, 9), 999)

    def decode(self, tokens):
        return [Image.new("RGB", (96, 96), "black")] * len(tokens)


@pytest.mark.parametrize("measure", [quality.table, quality.spot_check])
def test_the_table_fails_a_precision_that_is_wrong(measure, asked, examples, knowing):
    rows = measure({"FP16": knowing, "INT4": Wrong(asked, examples)}, knowing, asked, examples)
    metrics = {row["metric"] for row in rows if row["threshold"] is not None}
    assert failing(rows) == {(metric, "INT4") for metric in metrics if not metric.startswith("reconstruction")}


def test_a_wrong_decoder_of_pictures_fails(asked, examples, knowing):
    rows = quality.spot_check({"FP16": Wrong(asked, examples)}, knowing, asked, examples)
    decoded = {row["metric"] for row in rows if row["metric"].startswith("reconstruction")}
    assert {(metric, "FP16") for metric in decoded} <= failing(rows) and len(decoded) == 2


def test_a_spot_check_has_all_questions_together_and_greedy_tokens_in_place_of_drawings(
    asked, examples, knowing, tmp_path
):
    rows = quality.spot_check({"INT4": knowing}, knowing, asked, examples[::6])
    compare.check(rows)
    assert {row["metric"] for row in rows} > {f"accuracy, {quality.ALL}", TOKENS} and len(rows) == 10
    (share,) = {row["value"] for row in rows if row.get("control") == "the most frequent answer"}
    by_kind = quality.accuracy(quality.most_frequent_answers(asked), asked)
    assert share == pytest.approx(np.mean([*by_kind.values()]))
    report.save("janus_pro", model="tiny", device="CPU", parity=[], quality=rows, speed=[], folder=tmp_path)


def test_the_examination_has_every_precision_and_the_stored_one_passes(asked, examples, knowing, tmp_path):
    counts = []
    stubs = {"Reference": lambda checkpoint: knowing, "Janus": lambda folder: knowing}
    stubs |= {"trials": lambda count: counts.append(count) or asked}
    stubs |= {"prompts": lambda count: counts.append(count) or examples}
    stubs |= dict.fromkeys(("convert.prepare", "weights.resolve"), lambda *_: None)
    stored = examinations.check("janus_pro", quality, stubs, tmp_path)
    assert counts == [quality.TRIALS, quality.PROMPTS]
    assert {row["precision"] for row in stored} == {*parts.PRECISIONS, None}


def test_the_table_fails_who_needs_no_sentence(asked, examples, knowing):
    knowing.draw = lambda text, seed, guidance, n: [knowing.pictures[knowing.numbers[text]]] * n
    rows = quality.table({"FP16": knowing}, knowing, asked, examples)
    assert failing(rows) == {(f"drawings, {kind}", "no sentence") for kind in DRAWN}


def test_pytorch_and_the_pipeline_say_and_draw_the_same(checkpoint, janus, examples):
    reference = Reference(checkpoint)
    picture = Image.effect_noise((90, 60), 90).convert("RGB")
    assert (
        reference.understand(picture, "What is it?", 12)
        == janus.understand(picture, "What is it?", None, 12).text
        != ""
    )
    for options in ({"n": 2, "seed": 3}, {"temperature": 0.0}, {"guidance": 1.0}):
        drawn = reference.draw_tokens("a red ball", **options)
        assert drawn.tolist() == janus.draw_tokens("a red ball", **options).tolist()
    ours, theirs = reference.decode(drawn), janus.decode(drawn)
    assert np.abs(np.int64(np.asarray(ours[0])) - np.asarray(theirs[0])).max() <= 3
    assert reference.encode([picture, picture]).shape == (2, 16)


def test_the_end_of_training_is_told_in_a_line(asked, examples, knowing, monkeypatch):
    seeds = []
    monkeypatch.setattr(quality, "trials", lambda count, seed: seeds.append(seed) or asked)
    monkeypatch.setattr(quality, "prompts", lambda count, seed: seeds.append(seed) or examples)
    answers = ", ".join(f"{kind} 100%" for kind in data.QUESTION_KINDS)
    drawings = ", ".join(f"{kind} 100%" for kind in DRAWN)
    assert quality.summary(knowing) == f"Held out, right: answers: {answers}; drawings: {drawings}"
    assert seeds == [data.DEVELOPMENT] * 2
