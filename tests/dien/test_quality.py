"""The examination: controls and ablations are what they say, averages of the attention are those of the rows."""

import numpy as np
import pytest

from notebooks.dien.convert import convert
from notebooks.dien.data import MAX_HISTORY, movielens
from notebooks.dien.measuring import quality
from notebooks.dien.network import load_tiny
from notebooks.dien.pipeline import ClickModel
from tests.dien.small import EXACT
from utils import compare


@pytest.fixture
def few(monkeypatch):
    """The held-out interactions of every 400th user."""
    sets = {sampling: movielens().test_set(sampling, every=400) for sampling in quality.SAMPLINGS}
    monkeypatch.setattr(quality, "test_sets", lambda: sets)
    return sets


def test_a_shuffled_history_has_the_same_movies(few):
    examples = few["uniform"]
    mixed = quality.shuffled(examples, np.random.default_rng(0))
    assert (mixed.mid_his != examples.mid_his).any()
    assert (np.sort(mixed.mid_his, 1) == np.sort(examples.mid_his, 1)).all()
    assert (movielens().category[mixed.mid_his] == mixed.cat_his).all()
    lengths = (mixed.mid_his > 0).cumprod(1).sum(1)  # nothing but padding after the history
    assert (lengths == examples.seq_len).all()


def test_scores_are_those_of_the_rows_in_any_batches(few):
    examples, infer = few["uniform"], quality.torch_infer(load_tiny())
    scores = quality.predict(infer, examples, batch=7)
    assert scores.shape == (len(examples),)
    assert np.abs(scores - infer(examples.inputs())[0][:, 0]).max() < 1e-6


def test_quality_and_ablations_pass_and_make_a_table(few, tmp_path, monkeypatch):
    monkeypatch.setattr(quality, "FORMS", {"sum_pooling": "sum pooling"})
    path = convert(load_tiny(), tmp_path / "dien.xml", MAX_HISTORY)
    rows, ablations = quality.quality(path, path), quality.ablations()
    compare.check(rows)
    assert {row["precision"] for row in rows if "controls" not in row} == {"FP32", "BF16", "INT8"}
    assert len([row for row in rows if "controls" in row]) == 8
    table = quality.ablation_table(rows, ablations)
    names = ["DIEN with the program's gate (tiny)", "sum pooling", quality.UNGATED, quality.SHUFFLED]
    assert [line[0] for line in table.rows] == names
    expected = next(row["reference"] for row in rows if row["metric"] == "AUC, popularity negatives")
    assert table.rows[0][2] == f"{expected:.4f}"
    values = [f"{row['value']:.4f}" for row in ablations]
    assert [line[1] for line in table.rows[1:]] == values[:3] and [line[2] for line in table.rows[1:]] == values[3:]


def test_parity_holds_at_all_lengths_and_in_the_authors_form(tmp_path):
    rows = quality.parity(load_tiny(), convert(load_tiny(), tmp_path / "dien.xml", MAX_HISTORY))
    assert len(rows) == 4
    compare.check(rows)


def test_the_profile_averages_the_attention(few):
    """Weights that favour the latest step and know the candidate in half of the pairs."""

    def infer(inputs):
        attention = np.zeros(inputs["mid_his"].shape)
        attention[:, -1] = 0.75
        attention[:, 0] = 0.25
        known = (inputs["uid"] % 800 == 0) & (np.arange(len(attention)) % 2 == 1)
        attention[known] = attention[known][:, ::-1]
        return None, attention

    profile = quality.attention_profile(infer, batch=10**6)
    full = few["uniform"].seq_len == MAX_HISTORY
    uid, cat, cat_his = (getattr(few["uniform"], name)[full] for name in ("uid", "cat", "cat_his"))
    moved = (uid[::2] % 800 == 0).mean()
    assert (profile.rows, profile.users) == (full.sum(), len(np.unique(uid)))
    assert profile.same_movie == pytest.approx(1 - moved) and profile.moved == pytest.approx(moved / 2)
    assert profile.by_position[0] == pytest.approx(0.25 + moved / 4)
    assert profile.by_position[-1] == pytest.approx(0.75 - moved / 4)
    assert profile.by_position.sum() == pytest.approx(1) and profile.largest == 0.75
    same = cat_his == cat[:, None]
    assert profile.genre_share == pytest.approx(same.mean())
    weights = infer(few["uniform"].inputs(full))[1]
    assert profile.on_genre == pytest.approx((weights * same).sum(1).mean())
    assert profile.recency_on_genre == pytest.approx((weights.mean(0) * same).sum(1).mean())


def test_a_converted_model_attends_like_the_network(few, tmp_path):
    path = convert(load_tiny(), tmp_path / "dien.xml", MAX_HISTORY)
    ours = quality.attention_profile(ClickModel(path, cache=None, **EXACT).infer)
    theirs = quality.attention_profile(quality.torch_infer(load_tiny()))
    assert np.abs(ours.by_position - theirs.by_position).max() < 1e-4
    assert ours.same_movie == theirs.same_movie
