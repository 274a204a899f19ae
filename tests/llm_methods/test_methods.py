"""The registry: names, mechanisms and calls; every call is an expression that Python and the libraries know."""

import pytest
from openvino_genai import GenerationConfig

from notebooks.llm_methods.measuring.cache import scheduler_of
from notebooks.llm_methods.measuring.decoding import PROMISES
from notebooks.llm_methods.pipeline import DECODINGS, MECHANISMS, METHODS, PROMPTS, WEIGHTS, named, of
from notebooks.llm_methods.pipeline.methods import SCHEMA

KINDS = {"weights": 38, "activations": 4, "cache": 13, "prompt": 13, "decoding": 20, "reading": 4}


def test_names_are_unique_and_every_kind_is_there():
    assert len({method.name for method in METHODS}) == len(METHODS)
    assert {kind: len(of(kind)) for kind in KINDS} == KINDS


def test_every_method_has_a_mechanism_a_sentence_and_a_call_that_parses():
    for method in METHODS:
        assert method.mechanism in MECHANISMS
        assert method.how.endswith(".") and len(method.how.split()) <= 25, method.name
        compile(method.call, method.name, "eval")


def test_slow_methods_come_last():
    order = [method.slow for method in of("weights")]
    assert order == sorted(order) and order.count(True) == 5


def test_an_unknown_name_is_an_error_that_lists_the_known():
    assert named("NF4").call == "nncf.compress_weights(model, mode=Mode.NF4, group_size=64)"
    with pytest.raises(ValueError, match="There is no method 'INT5'.*INT8 asymmetric"):
        named("INT5")


@pytest.mark.parametrize("method", PROMPTS, ids=lambda method: method.name)
def test_a_prompt_method_sets_the_scheduler(method):
    plain, changed = scheduler_of("dict()", 64), scheduler_of(method.call, 64)
    assert changed.num_kv_blocks == 64
    options = ("use_cache_eviction", "use_sparse_attention", "enable_prefix_caching", "max_num_batched_tokens")
    same = all(getattr(plain, option) == getattr(changed, option) for option in options)
    assert same == (method.name == "full attention")


@pytest.mark.parametrize("method", DECODINGS, ids=lambda method: method.name)
def test_a_decoding_method_gives_options_that_generate_accepts(method):
    import openvino_genai as genai

    options = eval(method.call, {"genai": genai, "SCHEMA": SCHEMA, "adapter": genai.Adapter()})
    settings = GenerationConfig(max_new_tokens=4, eos_token_id=2, **options)
    settings.validate()
    assert method.where in ("ContinuousBatchingPipeline", "ChatHistory") or method.name in PROMISES


def test_calls_of_weights_with_text_say_what_they_need():
    from notebooks.llm_methods.pipeline import needs_text

    assert {method.name for method in WEIGHTS if needs_text(method.call)} == {m.name for m in WEIGHTS if m.needs}
