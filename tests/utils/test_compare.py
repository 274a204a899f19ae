"""Rows, verdicts and the logic of controls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils import compare

finite = st.floats(-1e6, 1e6)
better = st.sampled_from(["higher", "lower"])


def test_parity_measures_the_largest_difference_and_the_angle():
    row = compare.parity("head", np.array([[3.0, 0.0]]), np.array([[3.0, 4.0]]), tolerance=4.0)
    assert row == {
        "stage": "head",
        "max_abs_diff": 4.0,
        "cosine": pytest.approx(0.6),
        "tolerance": 4.0,
        "pass": True,
    }
    assert compare.parity("head", [0.0], [-4.5], tolerance=4.0)["pass"] is False
    tiny = np.array([1.0], np.float32) + np.float32(1.2e-7)  # one step of float32
    assert compare.parity("head", tiny, [1.0], 1e-7)["max_abs_diff"] == pytest.approx(2**-23)


def test_parity_reads_torch_bfloat16_and_does_not_wrap_unsigned_integers():
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1.0, -2.0], dtype=torch.bfloat16, requires_grad=True)
    assert compare.parity("torch", tensor, np.array([1.0, -2.5], np.float16), 1.0)["max_abs_diff"] == 0.5
    assert compare.parity("ids", np.array([1], np.uint8), np.array([3], np.uint8), 0)["max_abs_diff"] == 2.0


@pytest.mark.parametrize(("ours", "reference", "cosine"), [([0, 0], [0, 0], 1.0), ([0, 0], [1, 0], 0.0)])
def test_cosine_of_a_zero_vector(ours, reference, cosine):
    assert compare.parity("zero", ours, reference, 1)["cosine"] == cosine


@pytest.mark.parametrize(
    ("ours", "reference", "fault"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2)), r"shape \(2, 3\), the reference \(3, 2\)"),
        ([], [], "our output is empty"),
        ([1.0, np.nan], [1.0, 2.0], "our output has 1 of 2 values that are NaN"),
        ([1.0, 2.0], [np.inf, np.nan], "the reference has 2 of 2"),
    ],
)
def test_parity_refuses_what_cannot_be_compared(ours, reference, fault):
    with pytest.raises(ValueError, match=fault):
        compare.parity("head", ours, reference, 1)


@given(value=finite, step=st.floats(0, 1e6), threshold=finite, better=better)
def test_a_better_value_never_turns_a_pass_into_a_failure(value, step, threshold, better):
    improved = value + step if better == "higher" else value - step
    row = compare.quality("m", "INT8", value, None, threshold, better)
    if row["pass"]:
        assert compare.quality("m", "INT8", improved, None, threshold, better)["pass"]


@given(value=finite, threshold=finite, better=better)
def test_a_control_passes_exactly_when_the_metric_would_fail(value, threshold, better):
    measured = compare.quality("m", "INT8", value, None, threshold, better)
    control = compare.control("m", "shuffled", value, threshold, better)
    assert control["pass"] is (not measured["pass"])
    assert control["controls"] == "m" and control["control"] == "shuffled"


@given(threshold=finite, better=better)
def test_equal_to_the_threshold_passes(threshold, better):
    assert compare.quality("m", "INT8", threshold, None, threshold, better)["pass"] is True


def test_higher_and_lower_point_in_opposite_directions():
    assert compare.quality("accuracy", "INT8", 0.9, 1, 0.8, "higher")["pass"] is True
    assert compare.quality("accuracy", "INT8", 0.7, 1, 0.8, "higher")["pass"] is False
    assert compare.quality("perplexity", "INT8", 10.0, 9, 11.0, "lower")["pass"] is True
    assert compare.quality("perplexity", "INT8", 12.0, 9, 11.0, "lower")["pass"] is False


def test_passes_ignores_a_stored_verdict_and_never_accepts_nan():
    row = compare.quality("accuracy", "INT8", 0.1, 1, 0.8, "higher") | {"pass": True}
    assert compare.passes(row) is False
    for metric in (row, compare.control("accuracy", "chance", 0.1, 0.8, "higher")):
        assert compare.passes(metric | {"value": float("nan")}) is False
    parity = compare.parity("head", [1.0], [1.0], 1.0)
    assert compare.passes(parity | {"max_abs_diff": float("nan")}) is False


def test_without_threshold_a_row_is_only_reported():
    row = compare.quality("rouge", "INT4", 0.3, 0.4, None, "higher")
    assert row["pass"] is None
    compare.check([row])


def test_rows_refuse_wrong_words_and_numbers():
    with pytest.raises(ValueError, match="'bigger': say 'higher' or 'lower'"):
        compare.quality("m", "INT8", 1, 1, 1, "bigger")
    with pytest.raises(ValueError, match="perplexity is nan"):
        compare.quality("perplexity", "INT8", float("nan"), 1, 1, "lower")
    with pytest.raises(ValueError, match="threshold is inf"):
        compare.control("perplexity", "noise", 1, float("inf"), "lower")


def test_show_has_a_line_for_each_metric_and_marks_what_fails():
    table = compare.show(
        [
            compare.quality("perplexity", "FP16", 24.2238, 24.22, 24.47, "lower"),
            compare.quality("perplexity", "INT4", 30.26, 24.22, 29.07, "lower"),
            compare.control("perplexity", "scrambled weights", 249_369_848.8, 29.07, "lower"),
            compare.quality("right answers", "INT4", 37, 33, 28, "higher", of=48, goal=40),
            compare.quality("small words", "FP16", 19 / 24, 19 / 24, 0.74, "higher", of=24),
            compare.control("right answers", "the next question", 30, 28, "higher"),
            compare.quality("distance", "FP16", 0.000012345, 0, None, "lower"),
        ]
    )
    assert list(table.header) == [
        *("Metric", "Needed", "Goal", "PyTorch", "FP16", "INT4", "Negative controls (fail, as they should)")
    ]
    assert table.rows == [
        [
            *("perplexity (lower is better)", "at most 24.5 (FP16) to 29.1 (INT4)", "–", "24.2", "24.2", "30.3 FAILS"),
            "scrambled weights: 249 million",
        ],
        [
            *("right answers (higher is better)", "at least 28/48", "at least 40/48", "33/48", ""),
            *("37/48 (below goal)", "the next question: 30/48 PASSES, BUT SHOULD NOT"),
        ],
        ["small words (higher is better)", "at least 17.8/24", "–", "19/24", "19/24", "", ""],
        ["distance (lower is better)", "–", "–", "0", "0.0000123", "", ""],
    ]


@pytest.mark.parametrize("value", [0, 1])
def test_a_count_of_almost_nothing_is_no_share(value):
    row = compare.quality("right answers", "INT4", value, 4, 0, "higher", of=48, goal=40)
    assert compare.show([row]).rows[0][1:] == ["at least 0/48", "at least 40/48", "4/48", f"{value}/48 (below goal)"]


def test_show_of_speed_compares_with_the_fastest_pytorch_that_is_good_enough():
    def timed(runtime: str, precision: str, median_ms: float, **more) -> dict:
        return {"runtime": runtime, "precision": precision, "workload": "a sentence", "median_ms": median_ms, **more}

    rows = [timed("torch eager", "FP32", 90), timed("torch.compile", "FP32", 60), timed("openvino", "INT8", 20)]
    table = compare.show(rows)
    assert table.header == ["Workload", "Fastest PyTorch", "Fastest OpenVINO", "Ratio"]
    assert table.rows == [["a sentence", "60 ms (torch.compile, FP32)", "20 ms (openvino, INT8)", "3x"]]
    rows += [timed("torch eager", "BF16", 10, accepted=False), timed("openvino", "FP32", 40, ratio_at_precision=1.5)]
    table = compare.show(rows)
    assert table.header[-1] == "Ratio at equal precision"
    assert table.rows[0][1:] == ["60 ms (torch.compile, FP32)", "20 ms (openvino, INT8)", "3x", "1.5x (FP32)"]


def test_show_of_speed_compares_the_throughput_of_servers():
    def served(runtime: str, first_token_ms: float, throughput: float) -> dict:
        measured = {"median_ms": first_token_ms, "throughput": throughput, "unit": "tokens/s", "measure": "throughput"}
        return {"runtime": runtime, "precision": "INT4", "workload": "8 clients", **measured}

    rows = [served("transformers serve", 300, 20), served("openvino", 30, 90), served("openvino", 20, 80)]
    assert compare.show(rows).rows == [
        ["8 clients", "20 tokens/s (transformers serve, INT4)", "90 tokens/s (openvino, INT4)", "4.5x"]
    ]


def test_show_of_parity_says_how_far_apart_and_how_far_is_allowed():
    rows = [
        compare.parity("encoder", [1.0, 2.0], [1.0, 2.0000004], 1e-4),
        compare.parity("tokens", [1, 2], [1, 2], 0),
        compare.parity("head", [1.0], [2.0], 0.1),
    ]
    assert compare.show(rows).rows == [
        ["encoder", "under 0.00001", "0.0001", "passes"],
        ["tokens", "none", "none", "passes"],
        ["head", "1", "0.1", "FAILS"],
    ]


def test_check_counts_what_passes_and_names_what_misses_its_goal():
    rows = [
        compare.parity("encoder", [1.0], [1.0], 0.1),
        compare.quality("accuracy", "INT4", 0.85, 1, 0.8, "higher", goal=0.9),
        compare.quality("rouge", "INT4", 0.3, 0.4, None, "higher", goal=0.9),
    ]
    assert compare.check(rows[:1]) == "1 checks passed"
    assert compare.check(rows) == "2 checks passed; below their goal: accuracy"
    assert compare.below_goal(rows[1]) and not compare.below_goal(rows[2])


def test_check_names_every_failing_row_and_refuses_an_empty_table():
    rows = [
        compare.parity("encoder", [1.0], [1.0], 0.1),
        compare.parity("head", [1.0], [2.0], 0.1),
        compare.quality("accuracy", "INT4", 0.5, 1, 0.8, "higher"),
        compare.control("accuracy", "chance", 0.9, 0.8, "higher"),
    ]
    compare.check(rows[:1])
    with pytest.raises(AssertionError) as failure:
        compare.check(rows)
    assert str(failure.value) == (
        "3 of 4 rows fail: head differs from PyTorch by 1, tolerance 0.1; "
        "accuracy at INT4 is 0.5, threshold 0.8 (higher is better); "
        "the control 'chance' of accuracy reaches 0.9, but must not reach the threshold 0.8 "
        "(higher is better)."
    )
    with pytest.raises(AssertionError, match="no row"):
        compare.check([])
