"""The passes around the output layer: InsertSlice, SelectGreedy, ExposeHiddenState, and customize."""

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openvino.passes import Matcher, MatcherPass, WrapType

from notebooks.graph_customization.pipeline import (
    Change,
    ExposeHiddenState,
    InsertSlice,
    InsertWeights,
    SelectGreedy,
    customize,
)
from tests.utils.models.small import (
    HIDDEN,
    SLICES,
    STORAGES,
    TAILS,
    compress,
    fingerprint,
    language_model,
    run,
    stateful_logits,
    token_ids,
)

MODELS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 999),
        "vocabulary": st.integers(8, 40),
        "layers": st.integers(0, 2),
        "storage": st.sampled_from(STORAGES),
        "tied": st.booleans(),
        "tail": st.sampled_from(TAILS),
        "residual": st.booleans(),
    }
)
PROMPTS = st.tuples(st.integers(0, 999), st.integers(1, 3), st.integers(1, 9))


def head_of(model: ov.Model) -> ov.Node:
    """The output layer: the last MatMul of a hand-made model."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"][-1]


@settings(max_examples=40, deadline=None)
@given(MODELS, PROMPTS)
def test_sliced_logits_are_those_of_the_last_position(options, prompt):
    model, ids = language_model(**options), token_ids(*prompt, vocabulary=options["vocabulary"])
    expected = run(model, ids)[:, -1:]
    report = customize(model, [InsertSlice()])
    assert report.changed == 1
    np.testing.assert_array_equal(run(model, ids), expected)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_slice_works_for_every_storage_and_tail(storage, tied):
    ids = token_ids(1, batch=2, tokens=6)
    for tail in TAILS:
        model = language_model(2, storage=storage, tied=tied, tail=tail)
        logits = run(model, ids)
        customize(model, [InsertSlice()])
        assert logits.shape == (2, 6, 24) and not np.array_equal(logits[:, 0], logits[:, -1])
        np.testing.assert_array_equal(run(model, ids), logits[:, -1:])


def test_the_slice_is_put_before_the_output_layer_and_nowhere_else():
    model = language_model(layers=2)
    before = [node.get_friendly_name() for node in model.get_ordered_ops()]
    customize(model, [InsertSlice()])
    source = head_of(model).input_value(0).get_node()
    assert source.get_type_name() == "Slice"
    assert source.get_friendly_name() == f"{head_of(model).get_friendly_name()}/last_token"
    added = [node for node in model.get_ordered_ops() if node.get_friendly_name() not in before]
    assert sorted(node.get_type_name() for node in added) == ["Constant"] * 4 + ["Slice"]


def test_a_second_slice_is_left_out_and_the_report_says_so():
    model, ids = language_model(), token_ids(0, batch=2)
    customize(model, [InsertSlice()])
    expected, graph = run(model, ids), fingerprint(model)
    report = customize(model, [InsertSlice()])
    assert report.changed == 0 and [change.changed for change in report.changes] == [False]
    assert "left alone" in str(report) and "one token already" in str(report)
    assert fingerprint(model) == graph
    np.testing.assert_array_equal(run(model, ids), expected)


@pytest.mark.parametrize("cut", SLICES)
def test_a_cut_of_the_authors_own_is_recognised(cut):
    model = language_model(cut=cut)
    graph = fingerprint(model)
    report = customize(model, [InsertSlice()])
    assert [(change.pass_name, change.changed) for change in report.changes] == [("InsertSlice", False)]
    assert fingerprint(model) == graph


def without_output_layer() -> dict[str, ov.Model]:
    """Models whose outputs are no logits, though a MatMul with weights is near."""
    ids = ops.parameter([-1, -1], np.int64, name="input_ids")
    table = ops.constant(np.eye(8, dtype=np.float32))
    embedded = ops.gather(table, ids, np.int64(0))
    last = ops.gather(embedded, np.int64(-1), np.int64(1))
    attention = ops.softmax(ops.matmul(embedded, embedded, transpose_a=False, transpose_b=True), -1)
    pooled = ops.reduce_mean(ops.matmul(embedded, table, False, True), np.array([1], np.int64))
    values = {"two axes": ops.matmul(last, table, False, True), "attention": attention, "pooled": pooled}
    models = {name: ov.Model([value], [ids], name).clone() for name, value in values.items()}
    return models | {"encoder": language_model(layers=2, head=False)}


@pytest.mark.parametrize("one", [InsertSlice, SelectGreedy, ExposeHiddenState])
@pytest.mark.parametrize("name", without_output_layer())
def test_a_model_without_an_output_layer_is_refused_and_left_as_it_is(name, one):
    model = without_output_layer()[name]
    graph = fingerprint(model)
    with pytest.raises(ValueError, match=f"^{one.__name__}: this model has no output layer of the form MatMul"):
        customize(model, [one()])
    assert fingerprint(model) == graph


def test_hidden_states_beside_the_logits_are_not_sliced():
    """As in an export with all hidden states: they come through residual adds, which weights have no part in."""
    model, ids = language_model(layers=2), token_ids(0, batch=2, tokens=6)
    wide = [node for node in model.get_ordered_ops() if list(node.get_output_partial_shape(0))[2:] == [HIDDEN]]
    adds = [node for node in wide if node.get_type_name() == "Add"]
    model.add_outputs([add.output(0) for add in adds])
    expected = [run(model, ids, i) for i in range(len(model.outputs))]
    assert len(expected) == 3
    report = customize(model, [InsertSlice()])
    assert [change.node for change in report.changes] == [head_of(model).get_friendly_name()]
    np.testing.assert_array_equal(run(model, ids, 0), expected[0][:, -1:])
    for i in (1, 2):
        np.testing.assert_array_equal(run(model, ids, i), expected[i])


@settings(max_examples=20, deadline=None)
@given(MODELS, PROMPTS)
def test_greedy_selection_gives_the_largest_logit(options, prompt):
    model, ids = language_model(**options), token_ids(*prompt, vocabulary=options["vocabulary"])
    expected = run(model, ids).argmax(-1)
    report = customize(model, [SelectGreedy()])
    assert report.changed == 1
    chosen = run(model, ids, "token_ids")
    assert chosen.dtype == np.int64
    np.testing.assert_array_equal(chosen, expected)


def test_of_equal_logits_the_first_is_selected():
    ids = ops.parameter([-1, -1], np.int64, name="input_ids")
    table = np.array([[0, 1], [2, 0], [2, 0], [0, 1]], np.float32)
    logits = ops.matmul(ops.gather(ops.constant(table), ids, np.int64(0)), ops.constant(table), False, True)
    model = ov.Model([logits], [ids], "equals")
    customize(model, [SelectGreedy()])
    np.testing.assert_array_equal(run(model, np.array([[0, 1, 2, 3]])), [[0, 1, 1, 0]])


def test_the_selection_after_the_slice_gives_one_token():
    model, ids = language_model(tail="softcap"), token_ids(3, batch=3, tokens=7)
    expected = run(model, ids).argmax(-1)[:, -1:]
    customize(model, [InsertSlice(), SelectGreedy()])
    assert [output.get_any_name() for output in model.outputs] == ["token_ids"]
    np.testing.assert_array_equal(run(model, ids, "token_ids"), expected)


@settings(max_examples=15, deadline=None)
@given(MODELS, PROMPTS, st.permutations([InsertSlice, ExposeHiddenState]))
def test_the_hidden_state_has_all_tokens_whichever_pass_is_first(options, prompt, order):
    model, ids = language_model(**options), token_ids(*prompt, vocabulary=options["vocabulary"])
    logits = run(model, ids)
    reference = model.clone()
    reference.add_outputs(head_of(reference).input_value(0))
    hidden = run(reference, ids, 1)
    report = customize(model, [one() for one in order])
    assert [change.pass_name for change in report.changes] == [one.__name__ for one in order] and report.changed == 2
    exposed = run(model, ids, "last_hidden_state")
    assert exposed.shape == (*ids.shape, HIDDEN)
    np.testing.assert_array_equal(exposed, hidden)
    np.testing.assert_array_equal(run(model, ids), logits[:, -1:])


@pytest.mark.parametrize("cut", SLICES)
def test_the_hidden_state_has_all_tokens_though_the_author_cut_it(cut):
    model, whole, ids = language_model(cut=cut), language_model(), token_ids(0, batch=2)
    customize(model, [ExposeHiddenState()])
    customize(whole, [ExposeHiddenState()])
    expected = run(whole, ids, "last_hidden_state")
    assert expected.shape == (*ids.shape, HIDDEN)
    np.testing.assert_array_equal(run(model, ids, "last_hidden_state"), expected)


@pytest.mark.parametrize("one", [InsertSlice, SelectGreedy])
def test_an_exposed_hidden_state_is_not_taken_for_logits(one):
    """Without a norm before the output layer the hidden state is a MatMul's result, too."""
    ids = ops.parameter([-1, -1], np.int64, name="input_ids")
    embedding, square = (np.random.default_rng(n).standard_normal((8, 8), np.float32) for n in (0, 1))
    hidden = ops.matmul(ops.gather(ops.constant(embedding), ids, np.int64(0)), ops.constant(square), False, True)
    model = ov.Model([ops.matmul(hidden, ops.constant(embedding), False, True)], [ids], "bare")
    prompt = token_ids(0, batch=2, vocabulary=8)
    customize(model, [ExposeHiddenState()])
    expected = run(model, prompt, "last_hidden_state")
    report = customize(model, [one()])
    assert len(report.changes) == 1
    np.testing.assert_array_equal(run(model, prompt, "last_hidden_state"), expected)


def test_the_hidden_state_is_exposed_once():
    model = language_model()
    customize(model, [ExposeHiddenState()])
    graph = fingerprint(model)
    report = customize(model, [ExposeHiddenState()])
    assert report.changed == 0 and "already" in str(report)
    assert fingerprint(model) == graph


@pytest.mark.parametrize("first", [InsertSlice, SelectGreedy, ExposeHiddenState])
def test_all_passes_are_applied_or_none(first):
    model, ids = language_model(storage="u4"), token_ids(0)
    graph, names, expected = fingerprint(model), [o.get_names() for o in model.outputs], run(model, ids)
    with pytest.raises(ValueError, match="no layer was named"):
        customize(model, [first(), InsertWeights({})])
    assert [o.get_names() for o in model.outputs] == names
    assert fingerprint(model) == graph
    np.testing.assert_array_equal(run(model, ids), expected)


def test_a_report_counts_and_names_what_was_done():
    model = language_model()
    head = head_of(model).get_friendly_name()
    report = customize(model, [InsertSlice(), InsertSlice(), ExposeHiddenState()])
    assert [(c.pass_name, c.node, c.changed) for c in report.changes] == [
        ("InsertSlice", head, True),
        ("InsertSlice", head, False),
        ("ExposeHiddenState", head, True),
    ]
    assert report.changed == 2
    lines = str(report).splitlines()
    assert lines[0] == f"InsertSlice: changed {head}: input [?,?,{HIDDEN}] sliced to the last token"
    assert lines[1] == f"InsertSlice: left alone {head}: sees one token already"
    assert str(customize(model, [])) == "no pass matched"


def test_a_pass_object_can_be_used_again_on_another_model():
    one, ids = InsertSlice(), token_ids(4)
    for seed in (0, 1):
        model = language_model(seed)
        expected = run(model, ids)[:, -1:]
        assert customize(model, [one]).changed == 1
        np.testing.assert_array_equal(run(model, ids), expected)


class TanhToRelu(MatcherPass):
    """A reader's own pass, without the helpers of the pipeline."""

    def __init__(self, report: bool) -> None:
        super().__init__()
        if report:
            self.changes: list[Change] = []

        def callback(matcher: Matcher) -> bool:
            old = matcher.get_match_root()
            new = ops.relu(old.input_value(0))
            for port in old.output(0).get_target_inputs():
                port.replace_source_output(new.output(0))
            if report:
                self.changes.append(Change("TanhToRelu", old.get_friendly_name(), "replaced"))
            return True

        self.register_matcher(Matcher(WrapType("opset13.Tanh"), "TanhToRelu"), callback)


@pytest.mark.parametrize("reported", [True, False])
def test_a_pass_of_the_readers_own_runs_as_it_is(reported):
    model = language_model(layers=2)
    report = customize(model, [TanhToRelu(reported), InsertSlice()])
    kinds = [node.get_type_name() for node in model.get_ops()]
    assert kinds.count("Relu") == 2 and "Tanh" not in kinds
    assert report.changed == (3 if reported else 1)


@pytest.mark.parametrize("mode", ["FP16", "INT8_ASYM", "INT4_ASYM", "INT4_SYM"])
def test_exported_models_are_sliced_at_every_precision(llama, mode):
    options = {"group_size": 32} if mode.startswith("INT4") else {}
    model = ov.Core().read_model(llama) if mode == "FP16" else compress(llama, mode, **options)
    ids = token_ids(0, tokens=9, vocabulary=256)
    logits = stateful_logits(model, ids)
    hidden = model.clone()
    customize(hidden, [ExposeHiddenState()])
    assert hidden.output("last_hidden_state").get_partial_shape()[2].get_length() == 64
    assert customize(model, [InsertSlice()]).changed == 1
    sliced = stateful_logits(model, ids)
    assert sliced.shape == (1, 1, 256)
    np.testing.assert_allclose(sliced, logits[:, -1:], rtol=1e-5, atol=1e-5 * np.abs(logits).max())
    customize(model, [SelectGreedy()])
    np.testing.assert_array_equal(stateful_logits(model, ids), logits[:, -1:].argmax(-1))
