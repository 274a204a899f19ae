"""ClickModel: ragged histories, rows that do not depend on each other, sentences for bad input."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notebooks.dien import pipeline
from notebooks.dien.pipeline import ClickModel, shorten
from tests.dien.conftest import STEPS
from tests.dien.small import EXACT, SIZES, batch, network, ragged, run


@pytest.fixture(scope="module")
def model(ir) -> ClickModel:
    return ClickModel(ir, cache=None, **EXACT)


@pytest.fixture(scope="module")
def reference(reference_ir) -> ClickModel:
    return ClickModel(reference_ir, cache=None, **EXACT)


def row(**changes) -> tuple:
    """One good row, changed."""
    good = {"user": [1], "item": [2], "category": [3], "history": [[4, 5]], "kinds": [[1, 2]]}
    return tuple((good | changes).values())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, STEPS), min_size=1, max_size=8), st.integers(0, 99))
def test_ragged_histories_score_as_in_pytorch(model, independent, lengths, seed):
    inputs = batch(lengths, seed=seed)
    scores = model.score(*ragged(inputs))
    assert scores.dtype == np.float32 and scores.shape == (len(lengths),)
    assert np.abs(scores - run(independent, inputs)["y_hat"][:, 0]).max() < 1e-5


def test_a_score_depends_neither_on_batch_mates_nor_on_padding(model):
    inputs = batch([4, 9, 2, 1])
    together = model.score(*ragged(inputs))
    for i in range(4):
        alone = model.score(*ragged({name: x[i : i + 1] for name, x in inputs.items()}))
        assert abs(alone[0] - together[i]) < 1e-6
    wide = model.infer(batch([4, 9, 2, 1], width=STEPS))[0][:, 0]
    assert np.abs(wide - together).max() < 1e-6


def test_the_reference_mode_keeps_the_statistics_of_the_batch(reference):
    inputs = batch([4, 9, 2, 1])
    scores = reference.score(*ragged(inputs))
    assert np.abs(scores - run(network(), inputs)["y_hat"][:, 0]).max() < 1e-5
    alone = {name: x[2:3] for name, x in batch([4, 9, 2, 1]).items()}
    cut = {name: x[:, :2] if x.ndim == 2 else x for name, x in alone.items()}
    assert np.abs(reference.score(*ragged(alone)) - run(network(), cut)["y_hat"][:, 0]).max() < 1e-5


def test_of_a_longer_history_the_latest_items_count(model):
    inputs = batch([STEPS + 5])
    user, item, category, (history,), (kinds,) = ragged(inputs)
    whole = model.score(user, item, category, [history], [kinds])
    latest = model.score(user, item, category, [history[-STEPS:]], [kinds[-STEPS:]])
    earliest = model.score(user, item, category, [history[:STEPS]], [kinds[:STEPS]])
    assert whole == latest and whole != earliest


def test_attention_belongs_to_the_row_it_was_computed_for(model, independent):
    inputs = batch([7, 1, 3])
    _, attention = model.explain(*ragged(inputs))
    expected = run(independent, inputs)["att_alphas"]
    for i, length in enumerate(inputs["seq_len"]):
        assert attention[i].shape == (length,)
        assert np.abs(attention[i] - expected[i, :length]).max() < 1e-5


def test_pieces_of_a_batch_come_back_in_their_places(model, monkeypatch):
    monkeypatch.setattr("notebooks.dien.pipeline.PIECE", (1, 3))
    inputs = batch([5, 1, 9, 5, 2, 5, 5, 5, 5, 5, 5])
    scores, attention = model.explain(*ragged(inputs))
    monkeypatch.setattr("notebooks.dien.pipeline.PIECE", (100, 100))
    whole, whole_attention = model.explain(*ragged(inputs))
    assert len(np.unique(whole)) == len(whole), "rows that cannot be told apart prove nothing"
    assert np.abs(scores - whole).max() < 1e-6
    for ours, theirs in zip(attention, whole_attention, strict=True):
        assert np.abs(ours - theirs).max() < 1e-6


def test_requests_take_one_piece_after_another(model, independent):
    inputs = batch([4, 3, 2, 1, 4, 4, 3], width=4)
    requests = [model.compiled(4).create_infer_request() for _ in range(2)]
    result = {"y_hat": np.zeros((7, 2), np.float32), "attention": np.zeros((7, 4), np.float32)}
    pieces = [slice(0, 1), slice(1, 3), slice(3, 4), slice(4, 6), slice(6, 7)]
    pipeline._run_in_parallel(requests, inputs, result, pieces)
    expected = run(independent, inputs)
    assert np.abs(result["y_hat"] - expected["y_hat"]).max() < 1e-5
    assert np.abs(result["attention"] - expected["att_alphas"]).max() < 1e-5


def test_a_cut_out_of_wider_arrays_is_read_as_it_is(model, independent, monkeypatch):
    monkeypatch.setattr("notebooks.dien.pipeline.PIECE", (1, 4))
    wide = batch([4, 3, 2, 1] * 64, width=STEPS)
    cut = {name: x[:, :4] if x.ndim == 2 else x for name, x in wide.items()}
    for _ in range(5):
        y_hat, _ = model.infer(cut)
        assert np.abs(y_hat - run(independent, cut)["y_hat"]).max() < 1e-5


def test_a_batch_is_cut_evenly_over_the_streams(model):
    sizes = [[piece.stop - piece.start for piece in model._pieces(rows, 2)] for rows in (1, 63, 64, 128, 513, 1024)]
    assert sizes == [[1], [63], [32, 32], [64, 64], [128, 128, 128, 129], [256] * 4]


def test_a_batch_with_its_own_statistics_is_never_cut(reference):
    assert reference._pieces(1000, 2) == [slice(1000)]


def test_threads_share_a_model(model):
    inputs = [batch([5, 1, 9, 5], seed=seed) for seed in range(8)]
    alone = [model.score(*ragged(one)) for one in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda one: model.score(*ragged(one)), inputs))
    assert np.abs(np.array(together) - np.array(alone)).max() < 1e-6


@pytest.mark.parametrize("length", [1, 3, 5, STEPS])
def test_a_cut_graph_computes_what_the_whole_one_does(ir, independent, length):
    cut = shorten(ov.Core().read_model(ir), length)
    assert cut.input("mid_his").get_partial_shape()[1] == length
    inputs = batch([length, 1])
    result = ov.Core().compile_model(cut, "CPU", EXACT)(inputs)
    assert np.abs(result["y_hat"] - run(independent, inputs)["y_hat"]).max() < 1e-5


def test_a_graph_is_not_cut_to_a_length_it_has_not(ir):
    for length in (0, STEPS + 1):
        with pytest.raises(ValueError, match="10 steps: it cannot be cut"):
            shorten(ov.Core().read_model(ir), length)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"user": [SIZES[0]]}, "Row 0 of user_ids holds the id 40, which the model does not know"),
        ({"item": [-1]}, "Row 0 of item_ids holds the id -1"),
        ({"category": [float("nan")]}, "Row 0 of category_ids holds nan, which is no id"),
        ({"history": [[4, 1.5]]}, "Row 0 of histories holds 1.5, which is no id"),
        ({"history": [[4, float("nan")]]}, "Row 0 of histories holds nan"),
        ({"history": [[4, 60]]}, "Row 0 of histories holds the id 60"),
        ({"history": [[]], "kinds": [[]]}, "Row 0 has an empty history"),
        ({"kinds": [[1]]}, "Row 0 has 2 items in its history and 1 categories"),
        ({"user": [1, 2]}, "user_ids 2, item_ids 1"),
        ({"user": [], "item": [], "category": [], "history": [], "kinds": []}, "user_ids 0"),
        ({"item": ["Alien"]}, "Row 0 of item_ids is 'Alien'"),
        ({"user": [[1, 2]]}, "Row 0 of user_ids holds 2 ids"),
    ],
)
def test_bad_input_is_a_sentence_that_names_the_row(model, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        model.score(*row(**changes))


def test_the_row_that_is_named_is_the_one(model):
    with pytest.raises(ValueError, match="Row 2 has an empty history"):
        model.score([1] * 3, [1] * 3, [1] * 3, [[1], [2, 3], []], [[1], [2, 3], []])


def test_another_file_is_refused(tmp_path):
    x = ops.parameter([1], np.float32)
    ov.save_model(ov.Model([ops.relu(x)], [x]), tmp_path / "relu.xml")
    with pytest.raises(ValueError, match="is not a converted DIEN"):
        ClickModel(tmp_path / "relu.xml")
    with pytest.raises(ValueError, match="is not there"):
        ClickModel(tmp_path / "nothing.xml")


def test_compiled_graphs_are_kept_on_disk(ir, tmp_path):
    first = ClickModel(ir, cache=tmp_path / "cache", **EXACT)
    again = ClickModel(ir, cache=tmp_path / "cache", **EXACT)
    inputs = batch([5])
    assert first.score(*ragged(inputs)) == again.score(*ragged(inputs))
    assert again.compiled(5).get_property("LOADED_FROM_CACHE")


def test_it_runs_on_every_device(ir, device):
    assert ClickModel(ir, device, cache=None).score(*row()).shape == (1,)
