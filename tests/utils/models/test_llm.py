"""Compression; decoding with a cache gives the logits of a full recomputation; perplexity."""

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.utils.models.small import PRECISE, export, stateful_model, tiny_llama, token_ids
from utils.models import llm
from utils.models.llm import MODEL_XML, Session, model_inputs, perplexity

VOCABULARY = 256


@pytest.fixture(scope="module", params=["toy", "llama"])
def model(request, tmp_path_factory):
    """A hand-made stateful model, and an exported one with a real KV cache (made only when its turn comes)."""
    if request.param == "toy":
        return stateful_model(vocabulary=VOCABULARY)
    return ov.Core().read_model(export(tiny_llama(), tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def session(model):
    return Session(model, **PRECISE)


def recomputed(model: ov.Model, ids: np.ndarray) -> np.ndarray:
    """Logits [batch, tokens, vocabulary] from a new session, which has seen nothing before."""
    return Session(model, **PRECISE).prefill(ids).copy()


def test_inputs_after_cached_tokens():
    inputs = model_inputs(np.array([[7, 8], [9, 10]]), past=3)
    np.testing.assert_array_equal(inputs["input_ids"], [[7, 8], [9, 10]])
    np.testing.assert_array_equal(inputs["attention_mask"], np.ones((2, 5)))
    np.testing.assert_array_equal(inputs["position_ids"], [[3, 4], [3, 4]])
    np.testing.assert_array_equal(inputs["beam_idx"], [0, 1])


@pytest.mark.parametrize("batch", [1, 2])
def test_generated_tokens_are_those_of_a_full_recomputation(model, session, batch):
    prompt = token_ids(0, batch, 5, VOCABULARY)
    generated = session.generate(prompt, 6)
    assert generated.shape == (batch, 6)
    ids = prompt
    for step in range(6):
        token = recomputed(model, ids)[:, -1].argmax(-1)
        np.testing.assert_array_equal(generated[:, step], token)
        ids = np.concatenate([ids, token[:, None]], 1)
    assert generated.min() != generated.max()


def test_reading_in_pieces_is_reading_at_once(model, session):
    ids = token_ids(1, 2, 9, VOCABULARY)
    expected = recomputed(model, ids)
    pieces = [session.prefill(ids[:, :4]).copy(), session.extend(ids[:, 4:5]).copy(), session.extend(ids[:, 5:]).copy()]
    assert session.past == 9
    np.testing.assert_allclose(np.concatenate(pieces, 1), expected, atol=1e-4 * np.abs(expected).max())


def test_a_second_prompt_knows_nothing_of_the_first(model, session):
    first, second = token_ids(2, 1, 7, VOCABULARY), token_ids(3, 1, 4, VOCABULARY)
    session.prefill(first)
    session.extend(token_ids(4, 1, 2, VOCABULARY))
    logits = session.prefill(second).copy()
    assert session.past == 4
    np.testing.assert_array_equal(logits, recomputed(model, second))
    np.testing.assert_array_equal(session.prefill(first), recomputed(model, first))


def test_a_prompt_of_another_batch_can_follow(model, session):
    session.prefill(token_ids(5, 3, 4, VOCABULARY))
    ids = token_ids(6, 1, 4, VOCABULARY)
    np.testing.assert_array_equal(session.prefill(ids), recomputed(model, ids))


def test_a_stream_yields_the_generated_tokens_one_by_one(session):
    prompt = token_ids(7, 2, 4, VOCABULARY)
    expected = session.generate(prompt, 5)
    stream = session.stream(prompt, 5)
    np.testing.assert_array_equal(next(stream), expected[:, 0])
    assert session.past == 4  # the second token is computed when it is asked for
    np.testing.assert_array_equal(np.stack(list(stream), 1), expected[:, 1:])
    assert session.past == 8


@given(st.integers(2, 300), st.integers(2, 40), st.integers(2, 50), st.floats(-50, 50))
def test_a_uniform_model_is_as_perplexed_as_its_vocabulary_is_large(vocabulary, tokens, window, logit):
    ids = np.arange(tokens)[None] % vocabulary
    value = perplexity(lambda part: np.full((1, part.shape[1], vocabulary), logit), ids, window)
    np.testing.assert_allclose(value, vocabulary, rtol=1e-5)


def test_the_perplexity_of_a_known_distribution():
    """The model says 3/4 for a token that comes three times in four, 1/4 for the other: exp of their entropy."""
    ids = np.array([[0, *([1, 1, 1, 0] * 5)]])
    chances = np.array([0.25, 0.75])
    value = perplexity(lambda part: np.log(chances) + np.zeros((1, part.shape[1], 1)) + 7, ids, window=100)
    np.testing.assert_allclose(value, np.exp(-(chances * np.log(chances)).sum()), rtol=1e-6)


def test_each_position_is_scored_by_the_token_that_follows():
    """A model that is sure of token + 1."""
    ids = np.array([[3, 4, 5, 6, 7]])

    def sure_of_next(part: np.ndarray) -> np.ndarray:
        return 40.0 * (np.arange(10) == part[..., None] + 1)

    np.testing.assert_allclose(perplexity(sure_of_next, ids), 1)
    assert perplexity(sure_of_next, ids[:, ::-1]) > 1e15


def test_windows_are_read_apart_and_weighted_by_their_tokens():
    """Probability 1/2 in windows that begin with 0, 1/8 in others; windows of 4, 4 and 2 predict 3, 3 and 1."""
    ids = np.array([[0, 1, 1, 1, 1, 1, 1, 1, 0, 1]])
    seen = []

    def logits_of(part: np.ndarray) -> np.ndarray:
        seen.append(part.shape[1])
        chance = 1 / 2 if part[0, 0] == 0 else 1 / 8
        return np.log([1 - chance, chance]) + np.zeros((1, part.shape[1], 1))

    value = perplexity(logits_of, ids, window=4)
    assert seen == [4, 4, 2]
    np.testing.assert_allclose(value, 2 ** ((3 * 1 + 3 * 3 + 1 * 1) / 7), rtol=1e-6)


def test_logits_of_any_size_do_not_overflow():
    value = perplexity(lambda part: np.full((1, part.shape[1], 5), 6e4, np.float16), np.zeros((1, 4), int))
    np.testing.assert_allclose(value, 5, rtol=1e-6)


# --- conversion -----------------------------------------------------------------------------------------------


def test_a_folder_is_its_own_transformers_folder(tmp_path):
    assert llm.transformers_folder("any", tmp_path) == tmp_path


def test_an_unknown_precision_is_an_error_that_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="There is no precision 'INT2'. Choose one of: FP16, INT8"):
        llm.ir_folder("any", tmp_path, "INT2")


@pytest.mark.parametrize(("mode", "smaller", "like"), [("INT8_ASYM", 0.55, 0.99), ("INT4_ASYM", 0.36, 0.85)])
def test_compression_keeps_the_companions_and_most_of_the_numbers(mode, smaller, like, tmp_path):
    source = tmp_path / "ir"
    source.mkdir()
    xml = export(tiny_llama(), source)
    xml.rename(source / MODEL_XML)
    xml.with_suffix(".bin").rename(source / "openvino_model.bin")
    (source / "config.json").write_text("{}", encoding="utf-8")
    (source / "manifest.json").write_text("{}", encoding="utf-8")
    folder = tmp_path / "compressed"
    llm.compress(source, {"mode": mode, "group_size": 32}, folder)
    assert (folder / "config.json").is_file() and not (folder / "manifest.json").exists()
    sizes = [(one / "openvino_model.bin").stat().st_size for one in (source, folder)]
    assert sizes[1] < smaller * sizes[0]
    ids = token_ids(9, 1, 12, VOCABULARY)
    full, small = (Session(one / MODEL_XML, **PRECISE).prefill(ids).copy() for one in (source, folder))
    assert like < np.corrcoef(full.ravel(), small.ravel())[0, 1] < 1 - 1e-9


def test_a_session_runs_on_every_device(model, device):
    assert Session(model, device).generate(token_ids(0, 1, 5, VOCABULARY), 2).shape == (1, 2)
