"""AUC against its definition, log-loss against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebooks.dien.metrics import auc, log_loss

ROWS = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30)


@given(ROWS.filter(lambda rows: len({clicked for clicked, _ in rows}) == 2))
def test_auc_is_the_share_of_pairs_in_the_right_order(rows):
    clicked, scores = (np.array(x) for x in zip(*rows, strict=True))
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[clicked] for n in scores[~clicked]]
    assert auc(clicked, scores) == pytest.approx(np.mean(pairs))


def test_auc_of_one_kind_is_refused():
    with pytest.raises(ValueError, match="only one kind"):
        auc(np.array([True, True]), np.array([0.1, 0.2]))


def test_log_loss():
    assert log_loss(np.array([True, False]), np.array([0.5, 0.5])) == pytest.approx(np.log(2))
    assert log_loss(np.array([True, False]), np.array([0.8, 0.4])) == pytest.approx(-(np.log(0.8) + np.log(0.6)) / 2)
    assert np.isfinite(log_loss(np.array([True]), np.array([0.0])))
