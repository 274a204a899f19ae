"""The verdict on answers and drawings: who sees and listens is right, who does not is wrong, and the table tells."""

import numpy as np
import pytest
from PIL import Image

from notebooks.janus_pro import data
from notebooks.janus_pro.measuring import quality
from utils import compare, report

DRAWN = [*data.WISHES, quality.ALL]
EVERY_KIND = [f"accuracy, {kind}" for kind in data.QUESTIONS] + [f"drawings, {kind}" for kind in DRAWN]
TOKENS = "greedy tokens as PyTorch's"


@pytest.fixture(scope="module")
def asked() -> list[quality.Trial]:
    return quality.trials(8)


@pytest.fixture(scope="module")
def wished() -> list[quality.Wished]:
    return quality.wishes(5)


class Knowing:
    """Knows the true answers and draws the true pictures; its "tokens" are numbers of those."""

    def __init__(self, asked, wished):
        self.truth = {(picture.tobytes(), question.text): question.answer for picture, question in asked}
        self.pictures = [picture for picture, _ in wished]
        self.numbers = {wish.text: number for number, (_, wish) in enumerate(wished)}
        self.back = {}
        for drawn, question in quality.asked_back([quality.Drawing(*wish) for wish in wished]):
            self.back[drawn.tobytes(), question.text] = question.answer

    def understand(self, picture, text, max_new_tokens):
        assert max_new_tokens == quality.LONGEST
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
def knowing(asked, wished):
    return Knowing(asked, wished)


def failing(rows) -> set[tuple]:
    return {(row["metric"], row["precision"] or row["control"]) for row in rows if compare.passes(row) is False}


def test_there_are_trials_and_wishes_of_every_kind(asked, wished):
    assert [question.kind for _, question in asked] == [kind for kind in data.QUESTIONS for _ in range(8)]
    assert [wish.kind for _, wish in wished] == [kind for kind in data.WISHES for _ in range(5)]


def test_a_drawing_is_right_if_it_shows_what_was_asked_for(wished):
    made = [quality.Drawing(*wish) for wish in wished]
    assert set(quality.fulfilled(made).values()) == {1.0}
    other = quality.misunderstood(made)
    assert [drawing.wish.kind for drawing in other] == [drawing.wish.kind for drawing in made]
    assert not any(a.wish == b.wish for a, b in zip(made, other, strict=True))
    assert max(quality.fulfilled(other).values()) < 0.5


def test_questions_back_are_true_of_the_sentence(wished):
    asked = quality.asked_back([quality.Drawing(*wish) for wish in wished])
    assert {question.kind for _, question in asked} == set(quality.ROUND_TRIPS) and len(asked) == 20
    for picture, question in asked:
        wish = next(wish for true, wish in wished if true is picture)
        answers = {"place": wish.place, "count": str(len(wish.pairs))}
        assert question.answer == answers.get(wish.kind, wish.pairs[0][0])
        assert any(part in question.text for part in wish.pairs[0])


def test_noise_is_measured_in_decibels():
    grey, darker = Image.new("RGB", (8, 8), (128,) * 3), Image.new("RGB", (8, 8), (118,) * 3)
    assert quality.psnr([grey], [darker]) == pytest.approx(10 * np.log10(255**2 / 100))
    assert quality.psnr([grey, grey], [darker, grey]) == pytest.approx(10 * np.log10(255**2 / 50))
    assert quality.psnr([grey], [grey]) > 100


def test_tokens_agree_up_to_the_first_that_differs():
    one = np.array([[1, 2, 3, 4]])
    assert quality.agreement([one, one], [one, np.array([[1, 9, 3, 4]])]) == pytest.approx((1 + 0.25) / 2)


def test_the_table_passes_who_sees_and_listens_and_its_controls_lose(asked, wished, knowing, tmp_path):
    rows = quality.table({"FP16": knowing, "INT4": knowing}, knowing, asked, wished)
    compare.check(rows)
    for metric in EVERY_KIND:
        mine = [row for row in rows if row["metric"] == metric]
        assert [row["precision"] for row in mine if "control" not in row] == ["FP16", "INT4"]
        losers = {"blank picture", "another picture", "the most frequent answer"}
        losers = losers if metric.startswith("accuracy") else {"no sentence", "another sentence"}
        assert {row["control"] for row in mine if "control" in row} == losers
    assert next(row for row in rows if row["metric"] == "drawings, guidance off")["threshold"] is None
    assert {row["metric"] for row in rows} > {"round trip", TOKENS, "PSNR of pictures made of their tokens, dB"}
    report.save("janus_pro", model="tiny", device="CPU", parity=[], quality=rows, speed=[], folder=tmp_path)


def test_the_table_fails_a_precision_that_is_wrong(asked, wished, knowing):
    class Wrong(Knowing):
        def understand(self, picture, text, max_new_tokens):
            return "nothing"

        def draw(self, text, seed, guidance, n):
            return [Image.new("RGB", (96, 96), "white")] * n

        def draw_tokens(self, text, temperature):
            return np.full((1, 9), 999)

        def decode(self, tokens):
            return [Image.new("RGB", (96, 96), "black")] * len(tokens)

    rows = quality.table({"FP16": knowing, "INT4": Wrong(asked, wished)}, knowing, asked, wished)
    metrics = {row["metric"] for row in rows if row["threshold"] is not None}
    assert failing(rows) == {(metric, "INT4") for metric in metrics}


def test_the_table_fails_who_needs_no_sentence(asked, wished, knowing):
    knowing.draw = lambda text, seed, guidance, n: [knowing.pictures[knowing.numbers[text]]] * n
    rows = quality.table({"FP16": knowing}, knowing, asked, wished)
    assert failing(rows) == {(f"drawings, {kind}", "no sentence") for kind in DRAWN}


def test_pytorch_and_the_pipeline_say_and_draw_the_same(checkpoint, janus, wished):
    reference = quality.Reference(checkpoint)
    picture = Image.effect_noise((90, 60), 90).convert("RGB")
    assert reference.understand(picture, "What is it?", 12) == janus.understand(picture, "What is it?", None, 12) != ""
    for options in ({"n": 2, "seed": 3}, {"temperature": 0.0}, {"guidance": 1.0}):
        drawn = reference.draw_tokens("a red ball", **options)
        assert drawn.tolist() == janus.draw_tokens("a red ball", **options).tolist()
    ours, theirs = reference.decode(drawn), janus.decode(drawn)
    assert np.abs(np.int64(np.asarray(ours[0])) - np.asarray(theirs[0])).max() <= 3
    assert reference.encode([picture, picture]).shape == (2, 16)


def test_the_end_of_training_is_told_in_a_line(asked, wished, knowing, monkeypatch):
    monkeypatch.setattr(quality, "trials", lambda count: asked)
    monkeypatch.setattr(quality, "wishes", lambda count: wished)
    answers = ", ".join(f"{kind} 100%" for kind in data.QUESTIONS)
    drawings = ", ".join(f"{kind} 100%" for kind in DRAWN)
    assert quality.summary(knowing) == f"Held out, right: answers: {answers}; drawings: {drawings}"
