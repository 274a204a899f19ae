"""Ollama's options become settings of openvino_genai, are ignored on purpose, or are refused."""

import pytest

from notebooks.ollama_openvino.pipeline.modelfile import TYPES
from notebooks.ollama_openvino.server import parameters
from notebooks.ollama_openvino.server.models import FOREVER, keep_alive
from utils.serving.guard import RequestError


def test_each_option_has_one_treatment_and_a_modelfile_knows_no_other():
    groups = [set(parameters.SETTINGS), set(parameters.LENGTHS), set(parameters.NEUTRAL), parameters.IGNORED]
    assert sum(map(len, groups)) + 2 == len(parameters.KNOWN)
    assert set(TYPES) <= parameters.KNOWN


def test_the_options_of_a_request_come_before_those_of_the_model_and_of_ollama():
    one = parameters.sampling({"temperature": 0.5, "top_k": 7, "stop": ["a"]}, {"top_k": 9, "seed": 3}, 100)
    assert one.fields == {
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "rng_seed": 3,
        "do_sample": True,
    }
    assert (one.stop, one.stop_ids, one.length, one.context) == (("a",), frozenset(), -1, 100)


def test_temperature_0_is_greedy():
    fields = parameters.sampling({}, {"temperature": 0, "min_p": 0.1}, 100).fields
    assert fields["do_sample"] is False and not {"temperature", "top_k", "top_p", "min_p"} & set(fields)


def test_values_that_mean_something_else_here():
    assert "top_k" not in parameters.sampling({}, {"top_k": 0}, 100).fields
    assert parameters.sampling({}, {"top_p": 0}, 100).fields["top_k"] == 1
    seeds = {parameters.sampling({}, {"seed": -1}, 100).fields["rng_seed"] for _ in range(5)}
    assert len(seeds) > 1, "a negative seed is another one each time"
    assert parameters.sampling({}, {"num_ctx": 50}, 100).context == 50
    assert parameters.sampling({}, {"num_ctx": 500}, 100).context == 100
    assert parameters.sampling({"max_new_token": 9}, {}, 100).length == 9
    assert parameters.sampling({"stop": ["", "x"], "stop_id": [5]}, {}, 100)[1:3] == (("x",), frozenset({5}))


def test_how_llama_cpp_uses_the_machine_is_ignored_and_neutral_values_are_accepted():
    options = {"num_gpu": 1, "use_mmap": True, "mirostat": 0, "repeat_last_n": 64, "tfs_z": 1, "penalize_newline": True}
    assert parameters.check(options | {"top_k": None}) == options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "options must be a JSON object"),
        ({"heat": 1}, "there is no option 'heat'. There are: embedding_only"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"temperature": True}, "temperature must be a number"),
        ({"temperature": float("nan")}, "temperature must be a number"),
        ({"temperature": -1}, "temperature is -1; it must lie between 0 and 100"),
        ({"top_p": 2}, "top_p is 2"),
        ({"top_k": 1.5}, "top_k must be a whole number"),
        ({"num_predict": -3}, "num_predict is -3"),
        ({"num_ctx": 0}, "num_ctx is 0"),
        ({"mirostat": 1}, "mirostat is not supported, except as 0"),
        ({"repeat_last_n": [1]}, "repeat_last_n is not supported, except as -1 or 64"),
        ({"stop": [1]}, "stop must be a list"),
        ({"stop": ["x"] * 17}, "stop must be a list of at most 16"),
        ({"stop": "x" * 201}, "at most 200 characters"),
        ({"stop_id": [-1]}, "stop_id must be a list"),
    ],
)
def test_what_cannot_be_done_is_refused(options, message):
    with pytest.raises(RequestError) as caught:
        parameters.check(options)
    assert caught.value.status_code == 400 and message in caught.value.detail


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (5, 5),
        (0, 0),
        ("0", 0),
        ("300", 300),
        ("5m", 300),
        ("1h30m", 5400),
        ("250ms", 0.25),
        (-1, FOREVER),
    ],
)
def test_keep_alive_is_read_as_ollama_reads_it(value, seconds):
    assert keep_alive(value) == seconds


@pytest.mark.parametrize("value", ["", "5 minutes", "m", [], True, float("nan"), "9" * 30])
def test_a_keep_alive_that_is_none_is_refused(value):
    with pytest.raises(RequestError, match="keep_alive is"):
        keep_alive(value)


def test_a_number_of_any_size_is_an_error_and_no_crash():
    for name in ("seed", "temperature", "num_predict"):
        with pytest.raises(RequestError, match="it must lie between"):
            parameters.check({name: 10**400})
    with pytest.raises(RequestError, match="keep_alive is"):
        keep_alive(10**400)
