"""Which spelling of attention OpenVINO fuses by itself, and which after the pass, as seen in the executed graph."""

import openvino as ov
import pytest
from openvino._offline_transformations import apply_make_stateful_transformation

from notebooks.sdpa_enabling.convert import to_ir
from notebooks.sdpa_enabling.network import SPELLINGS, UNMASKED, Attention
from notebooks.sdpa_enabling.pipeline import FUSED, WITH_CACHE, fuse_attention, layer_types, make_stateful
from tests.sdpa_enabling.layers import difference, is_fused, layer
from utils.models.llm import FP32_PROPERTIES

ALONE, BY_THE_PASS, NEVER = (True, True), (False, True), (False, False)
MENDED = {"boolean mask": "a boolean mask -> a mask of numbers"}
MENDED |= dict.fromkeys(
    ("F.scaled_dot_product_attention", "times a constant", "keys scaled after the cache"),
    "a mask that rows share -> a mask for each row",
)
EXPECTED = {  # OpenVINO 2026.4.1: fused before the pass, after the pass
    "F.scaled_dot_product_attention": ALONE,
    "times a constant": ALONE,
    "divided by sqrt(d)": BY_THE_PASS,
    "masked_fill": BY_THE_PASS,
    "torch.where": BY_THE_PASS,
    "mask first": BY_THE_PASS,
    "max(scores, lowest)": BY_THE_PASS,
    "keys scaled after the cache": NEVER,
    "keys rotated after the cache": NEVER,
    "einsum": BY_THE_PASS,
    "exp / sum": BY_THE_PASS,
    "bmm": NEVER,
    "cast to half": NEVER,
    "soft cap": NEVER,
    "boolean mask": ALONE,
}
REASONS = {"soft cap": "Tanh stands between", "bmm": "read by Reshape", "cast to half": "already"}


def test_every_spelling_is_expected():
    assert EXPECTED.keys() == SPELLINGS.keys()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_fuses_as_the_table_says_and_gives_the_same_result(spelling):
    network, model = layer(spelling)
    before = is_fused(model)
    report = fuse_attention(model)
    assert (before, is_fused(model)) == EXPECTED[spelling]
    assert (REASONS | MENDED).get(spelling, "") in str(report)
    assert report.changed == (EXPECTED[spelling] == BY_THE_PASS or spelling in MENDED)
    assert difference(network, model) < (1e-3 if spelling == "cast to half" else 1e-5)


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ({"kv_heads": 1}, True),
        ({"kv_heads": 2}, True),
        ({"rotary": True}, True),
        ({"window": 3}, True),
        ({"padding": 2}, True),
        ({"kv_heads": 2, "repeat": "repeat_interleave"}, False),
        ({"kv_heads": 2, "repeat": "enable_gqa"}, False),
    ],
    ids=str,
)
def test_grouped_queries_positions_and_windows(options, fused):
    network, model = layer("F.scaled_dot_product_attention", **options)
    assert is_fused(model) == fused
    assert difference(network, model) < 1e-5


def test_attention_without_a_mask_raises_an_error_with_a_cache_and_the_pass_mends_it():
    network, model = layer("no mask")
    assert is_fused(model)
    with pytest.raises(RuntimeError, match="attention_mask do not match"):
        difference(network, model)
    assert "a scalar mask -> no mask" in str(fuse_attention(model))
    assert is_fused(model)
    assert difference(network, model) < 1e-5


def test_is_causal_counts_from_the_other_end_with_state_and_the_report_says_so():
    network = Attention("is_causal=True").eval()
    model = to_ir(network)
    assert "results change" in str(make_stateful(model))
    assert is_fused(model)
    assert difference(network, model, lengths=(5,)) < 1e-5
    assert difference(network, model, lengths=(5, 1)) > 0.1
    assert set(UNMASKED) == {"no mask", "is_causal=True"}


def test_without_beam_idx_the_cache_is_not_fused():
    model = to_ir(Attention("F.scaled_dot_product_attention"))
    apply_make_stateful_transformation(model, {"past_keys": "keys", "past_values": "values"})
    types = layer_types(ov.Core().compile_model(model, "CPU", FP32_PROPERTIES))
    assert types["MatMul"] == 2 and types["Softmax"] == 1 and types["MemoryInput"] == 2


def test_without_an_initial_value_the_model_does_not_compile():
    _, model = layer("F.scaled_dot_product_attention")
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([])
    with pytest.raises(RuntimeError):
        ov.Core().compile_model(model, "CPU", FP32_PROPERTIES)


def test_without_state_the_operation_is_taken_apart():
    model = to_ir(Attention("F.scaled_dot_product_attention"))
    assert [node for node in model.get_ops() if node.get_type_name() == FUSED]
    types = layer_types(ov.Core().compile_model(model, "CPU", FP32_PROPERTIES))
    assert not types[FUSED] and not types[WITH_CACHE]
