"""The traps of the README, on a small network: what NNCF refuses, and what the processor executes."""

import nncf
import numpy as np
import openvino as ov
import pytest

from notebooks.llm_methods.pipeline import compress, named
from tests.llm_methods.small import network


def executed(call: str) -> list[str]:
    """The operations of the compiled network with their precision, in the order of execution."""
    model = compress(call, network())
    graph = ov.Core().compile_model(model, "CPU").get_runtime_model()
    infos = [node.get_rt_info() for node in graph.get_ordered_ops()]
    return [f"{info['layerType'].astype(str)} {info['runtimePrecision'].astype(str)}" for info in infos]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("INT8 asymmetric", "u8"),
        ("INT8 symmetric", "i8"),
        ("INT4 asymmetric", "u4"),
        ("INT4 symmetric", "i4"),
        ("NF4", "nf4"),
        ("MXFP4", "f4e2m1"),
        ("INT2", "u2"),
    ],
)
def test_the_product_reads_these_weights_as_they_are(name, precision):
    assert f"FullyConnected {precision}" in executed(named(name).call)


def test_the_head_of_mxfp4_is_converted_unless_it_is_int8():
    assert executed(named("MXFP4").call).count("Convert f8e4m3") == 1
    assert "Convert f8e4m3" not in executed(named("MXFP4, head INT8").call)


@pytest.mark.parametrize("name", ["FP8", "MXFP8"])
def test_fp8_weights_are_converted_in_every_layer(name):
    assert executed(named(name).call).count("Convert f8e4m3") == 3


@pytest.mark.parametrize("name", ["CB4", "Student's t codebook"])
def test_codebooks_are_looked_up_in_every_call(name):
    assert sum(kind.startswith("Gather") for kind in executed(named(name).call)) == 2


def test_int3_takes_the_memory_of_16_bits_while_it_runs():
    kinds = executed(named("INT3").call)
    assert not {"FullyConnected u3", "FullyConnected i3"} & set(kinds)
    assert sum(kind in ("FullyConnected bf16", "FullyConnected f32") for kind in kinds) == 2


def test_groups_that_do_not_divide_a_row_are_an_error_without_a_fallback():
    rows = network(width=192)
    with pytest.raises(nncf.InvalidGroupSizeError):
        compress("nncf.compress_weights(model, mode=Mode.INT4_ASYM, group_size=128)", rows)
    model = compress(named("INT4 groups of 128").call, network(width=192))
    scales = {tuple(node.shape) for node in model.get_ops() if node.get_type_name() == "Constant"}
    assert (192, 3, 64) in scales  # 128 became 64


def test_the_adaptive_codebook_needs_data():
    call = "nncf.compress_weights(model, mode=Mode.ADAPTIVE_CODEBOOK, group_size=64)"
    with pytest.raises(TypeError, match="NoneType"):
        compress(call, network())


@pytest.mark.parametrize(("prompt", "count"), [(400, 2), (200, 100)])
def test_adaptive_rkv_fails_after_a_long_prompt_and_in_a_long_answer(prompt, count):
    import openvino_genai as genai

    from notebooks.llm_methods import convert
    from notebooks.llm_methods.measuring.cache import scheduler_of

    scheduler = scheduler_of(named("adaptive R-KV").call, 64)  # 256 tokens stay
    pipeline = genai.ContinuousBatchingPipeline(str(convert.prepare("tiny")), scheduler, "CPU", {})
    ids = ov.Tensor(np.random.default_rng(0).integers(100, 40_000, (1, prompt)))
    settings = genai.GenerationConfig(max_new_tokens=count, do_sample=False, ignore_eos=True)
    with pytest.raises(RuntimeError, match="Token diversity must be registered before each eviction"):
        pipeline.generate([ids], [settings])


def test_sage_attention_is_refused_outside_the_paged_cache():
    from notebooks.llm_methods import convert
    from utils.models.llm import MODEL_XML, Session

    with pytest.raises(RuntimeError, match="supports key/value cache precision f32, f16, bf16, u8, u4 but gets i8"):
        Session(convert.prepare("tiny") / MODEL_XML, **eval(named("SAGE attention").call))


def test_a_prefix_in_the_cache_does_not_know_the_adapter():
    import openvino_genai as genai

    from notebooks.llm_methods import convert
    from notebooks.llm_methods.measuring.decoding import EXACT

    folder = convert.prepare("tiny", named("INT8 asymmetric").call, "INT8 asymmetric")
    adapter = genai.AdapterConfig(genai.Adapter(str(convert.ADAPTER)))
    answers = {}
    for caching in (True, False):
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.enable_prefix_caching = 1, caching
        pipeline = genai.LLMPipeline(str(folder), "CPU", adapters=adapter, scheduler_config=scheduler, **EXACT)
        options = {"max_new_tokens": 12, "do_sample": False}
        on = str(pipeline.generate("What is the capital of Italy?", adapters=adapter, **options))
        off = str(pipeline.generate("What is the capital of Italy?", adapters=genai.AdapterConfig(), **options))
        answers[caching] = (on, off)
    assert answers[True][0] == answers[True][1] == answers[False][0]
    assert answers[False][1].startswith("The capital of Italy is")
