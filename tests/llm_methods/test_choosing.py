"""The front and the recommendation, on rows with known answers."""

import math

import pytest

from notebooks.llm_methods.pipeline import front, recommend
from tests.llm_methods.small import row

ROWS = [
    row("FP16", perplexity=24.0, model_mb=270, running_mb=900, first_ms=140, tokens_per_s=60),
    row("INT8 asymmetric", perplexity=24.4, model_mb=135, running_mb=700, first_ms=130, tokens_per_s=90),
    row("INT4 asymmetric", perplexity=30.0, model_mb=86, running_mb=600, first_ms=127, tokens_per_s=110),
    row("MXFP4", perplexity=37.0, model_mb=86, running_mb=650, first_ms=200, tokens_per_s=30),
    row("INT2", perplexity=26000.0, model_mb=58, running_mb=500, first_ms=100, tokens_per_s=115),
    row("GPTQ", perplexity=None),
]


def names(rows):
    return [one["name"] for one in rows]


def test_the_front_has_what_no_other_row_beats():
    assert names(front(ROWS, {"perplexity": False, "model_mb": False})) == [
        "FP16", "INT8 asymmetric", "INT4 asymmetric", "INT2",
    ]  # fmt: skip
    assert names(front(ROWS, {"tokens_per_s": True})) == ["INT2"]


def test_equal_rows_stay_on_the_front_together():
    assert len(front([row("NF4"), row("CB4")], {"perplexity": False, "model_mb": False})) == 2


@pytest.mark.parametrize(
    ("options", "best"),
    [
        ({"goal": "quality"}, "FP16"),
        ({"goal": "quality", "ram_gb": 0.8}, "INT8 asymmetric"),
        ({"goal": "quality", "ram_gb": 0.55}, "INT2"),
        ({"goal": "speed", "at_most": 1.1}, "INT8 asymmetric"),
        ({"goal": "size"}, "INT4 asymmetric"),
        ({"goal": "first token", "first_ms": 128}, "INT4 asymmetric"),
    ],
)
def test_the_best_row_within_limits(options, best):
    assert recommend(ROWS, **options)[0]["name"] == best


def test_a_fast_model_that_has_lost_the_language_is_not_recommended():
    assert recommend(ROWS, "speed")[0]["name"] == "INT4 asymmetric"
    assert recommend(ROWS, "speed", at_most=math.inf)[0]["name"] == "INT2"


def test_limits_that_nothing_keeps_are_an_error_with_the_least():
    with pytest.raises(ValueError, match="No method keeps running_mb within 100; the least is 500"):
        recommend(ROWS, "quality", ram_gb=0.1)
    with pytest.raises(ValueError, match="No method has a perplexity"):
        recommend(ROWS[-1:], "quality")
    with pytest.raises(ValueError, match="There is no goal 'fun'. Choose one of: quality, speed"):
        recommend(ROWS, "fun")
