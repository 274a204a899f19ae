"""The reader reads sentences that were written by hand, and no class of them worse than the front ends before it."""

import json
import re
from collections import Counter

import pytest
from pypinyin import Style, lazy_pinyin

from tests.utils.speech.mandarin import scoring

LEAST = 0.98  # of all syllables of the test half
RESULTS = json.loads(scoring.RESULTS.read_text(encoding="utf-8"))["readers"]
BEFORE = {name: halves for name, halves in RESULTS.items() if name != scoring.THIS}
KINDS = [*dict.fromkeys(sentence.kind for sentence in scoring.sentences("test"))]


@pytest.fixture(scope="module")
def reading() -> scoring.Reading:
    return scoring.Reading()


@pytest.fixture(scope="module")
def scores(reading) -> dict[str, scoring.Score]:
    return {half: scoring.score(reading, half) for half in scoring.HALVES}


def test_the_sentences_are_many_and_of_every_class():
    counts = {half: Counter(sentence.kind for sentence in scoring.sentences(half)) for half in scoring.HALVES}
    assert sum(sum(count.values()) for count in counts.values()) >= 300
    assert len(KINDS) == 12 and all(count[kind] >= 10 for count in counts.values() for kind in KINDS)
    texts = [sentence.text for half in scoring.HALVES for sentence in scoring.sentences(half)]
    assert len(texts) == len(set(texts))


def test_alternatives_are_few():
    """With every alternative allowed, a test could not fail."""
    syllables = [syllable for half in scoring.HALVES for s in scoring.sentences(half) for syllable in s.syllables]
    assert len([syllable for syllable in syllables if len(syllable.readings) > 1]) < 0.12 * len(syllables)


@pytest.mark.parametrize(
    ("read", "right"),
    [("gu1 er2 huar1", 3), ("gu1 er2 huar1 er1", 2), ("gu1 er5 huar1", 2), ("gu1 er2", 2), ("a1 a1 a1 a1 a1 a1", 0)],
)
def test_insertions_omissions_and_wrong_tones_are_errors(monkeypatch, read, right):
    one = scoring.Sentence("er", "孤儿花儿", [scoring.Usual(x) for x in ("gu1", "er2", "huar1/huar2")])
    monkeypatch.setattr(scoring, "sentences", lambda half: [one])
    assert scoring.score(lambda text: read.split(), "test") == {"er": [right, 3]}


def test_98_percent_of_the_syllables_are_right(scores):
    assert scoring.share(scores["test"]) >= LEAST


@pytest.mark.parametrize("kind", KINDS)
def test_no_class_is_read_worse_than_before(scores, kind):
    right, total = scores["test"][kind]
    assert right / total >= max(share(halves["test"][kind]) for halves in BEFORE.values())


def share(score: list[int]) -> float:
    return score[0] / score[1]


def test_the_stored_numbers_are_those_of_this_reader(scores):
    assert RESULTS[scoring.THIS] == scores


def test_a_dictionary_alone_fails():
    """The negative control: pypinyin, after our normalisation, without context and sandhi."""

    def read(text: str) -> list[str]:
        said = "".join(re.findall("[一-龥〇]", scoring.normalise(text, "letters")))
        return lazy_pinyin(said, style=Style.TONE3, neutral_tone_with_five=True)

    assert scoring.share(scoring.score(read, "test")) < LEAST
