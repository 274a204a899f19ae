"""Measuring sees what is wrong, and the model on paper is what its formula says."""

import os

import numpy as np
import pytest

from notebooks.llm_distributed.measuring import cost, quality, speed
from notebooks.llm_distributed.measuring.cost import Link, Size, token_seconds
from tests.llm_distributed import small
from utils import preflight


def test_ranks_that_are_wrong_on_purpose_guess_worse(shares):
    page = np.array([small.PROMPT * 4])
    right = quality.examine(shares(2), [small.PROMPT], page, 5)
    alone = quality.examine(shares(1), [small.PROMPT], page, 5)
    assert right.tokens == alone.tokens and right.perplexity == pytest.approx(alone.perplexity, rel=1e-3)
    broken = quality.controls(shares(2), shares(3), page)
    assert len(broken) == 3
    assert all(abs(value / right.perplexity - 1) > 0.05 for value in broken.values())


def test_rows_compare_each_number_of_ranks():
    logits = np.zeros((1, 2, 3))
    reference = quality.Examined([[1, 2, 3, 4], [5, 6, 7, 8]], logits, 10.0)
    same = quality.Examined([[1, 2], [5, 6]], logits + 0.01, 10.0)
    rows = quality.parity({1: reference, 3: same}, reference)
    assert [row["stage"] for row in rows][2:] == ["logits, 3 ranks", "4 tokens, 3 ranks"]
    assert all(row["pass"] for row in rows)
    other = quality.Examined([[1, 2], [5, 7]], logits, 10.0)
    assert not quality.parity({2: other}, reference)[1]["pass"]


def test_a_row_of_quality_fails_above_its_limit():
    rows = quality.quality({"FP32": 10.0}, {"FP32": 10.2, "INT8": 10.2}, {"broken": 99.0}, 10.0)
    assert [row["pass"] for row in rows] == [False, True, True, True, True]


def test_memory_and_the_time_are_by_rank(shares):
    rows = speed.memory(shares(2), small.PROMPT)
    assert len(rows) == 2 and all(row["private_mb"] > row["weights_mb"] > 0 for row in rows)
    found = speed.split(shares(2), small.PROMPT, count=4)
    assert found["calls"] == [6, 6] and all(
        group < ms for group, ms in zip(found["group_ms"], found["ms"], strict=True)
    )


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores are chosen on Linux only")
def test_each_layout_is_timed_at_each_precision(shares):
    whole, halves = dict.fromkeys(("FP32", "INT8"), shares(1)[0]), dict.fromkeys(("FP32", "INT8"), shares(2))
    found = speed.settings(whole, halves)
    assert len({*found}) == 6 and all(setting.model_mb > 0 for setting in found)  # `bench.compare` has them as keys


def test_a_link_is_found_from_its_times():
    link = Link(20e-6, 2e9)
    found = Link.fit({size: link.seconds(size) for size in (4, 4_000, 4_000_000)})
    assert found.latency_s == pytest.approx(20e-6) and found.bytes_per_s == pytest.approx(2e9)


def test_a_token_costs_its_weights_and_its_messages():
    size = Size("one", 1e9, 10, 1000)
    link = Link(1e-4, 1e9)
    assert token_seconds(size, 1, 1e10, link) == pytest.approx(0.1)
    assert token_seconds(size, 2, 1e10, link) == pytest.approx(0.05 + 21 * (1e-4 + 4e-6))
    assert token_seconds(size, 4, 1e10, link) == pytest.approx(0.025 + 42 * (1e-4 + 4e-6))
    assert token_seconds(size, 4, 1e10, link, call_s=1e-3) == pytest.approx(0.025 + 42 * (1e-4 + 4e-6) + 0.021)


def test_large_models_gain_more_on_paper():
    notes = cost.speedup_notes(Link(2e-5, 2e9))
    eight = [value for name, value in notes.items() if name.endswith("8 ranks")]
    assert len(notes) == 9 and sorted(eight) == eight and 1 < eight[0] < eight[-1] < 8


def test_a_link_is_measured_between_two_processes():
    found = cost.measure_link((16, 4096), calls=20)
    assert list(found) == [64, 16384] and all(0 < seconds < 1 for seconds in found.values())


def test_a_call_of_python_takes_microseconds():
    assert 1e-6 < preflight.in_child(cost.measure_call, 64, 20) < 0.01
