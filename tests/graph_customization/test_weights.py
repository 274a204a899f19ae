"""InsertWeights inserts numbers exactly or raises an error; weights_from returns the weights that can be inserted."""

import gc
from dataclasses import replace

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notebooks.graph_customization.pipeline import (
    InsertSlice,
    InsertWeights,
    Int4Weight,
    customize,
    read_int4_weights,
    weights_from,
)
from tests.utils.models.small import (
    GROUP,
    INNER,
    compress,
    export,
    fingerprint,
    language_model,
    run,
    stateful_logits,
    token_ids,
    weight,
)

INPUTS, OUTPUTS = 32, 12
LAYER = "model.layers.0.mlp.up_proj"
FOUR_BIT = ["u4", "u4 per channel", "i4", "i4 per channel"]


def linear_layer(storage: str) -> ov.Model:
    """[?, ?, INPUTS] -> [?, ?, OUTPUTS]: the one 4-bit layer `proj`."""
    value = ops.parameter([-1, -1, INPUTS], np.float32)
    matrix = np.random.default_rng(0).standard_normal((OUTPUTS, INPUTS), np.float32)
    return ov.Model([ops.matmul(value, weight(matrix, storage, "proj"), False, True)], [value], "linear")


def multiplied_with(model: ov.Model) -> np.ndarray:
    """The matrix [OUTPUTS, INPUTS] of a `linear_layer`, as the compiled model applies it."""
    return run(model, np.eye(INPUTS, dtype=np.float32)[None])[0].T


def random_weight(seed: int, storage: str, outputs: int = OUTPUTS, inputs: int = INPUTS) -> Int4Weight:
    random = np.random.default_rng(seed)
    groups = inputs // GROUP if storage in ("u4", "i4") else 1
    scales = random.uniform(0.01, 0.1, (outputs, groups)).astype(np.float16)
    if storage.startswith("i4"):
        signs = random.choice(np.array([-1, 1], np.float16), (outputs, groups))  # NNCF's scales have signs
        return Int4Weight(random.integers(-8, 8, (outputs, inputs)).astype(np.int8), scales * signs)
    numbers = random.integers(0, 16, (outputs, inputs)).astype(np.uint8)
    return Int4Weight(numbers, scales, random.integers(0, 16, (outputs, groups)).astype(np.uint8))


def dequantized(new: Int4Weight) -> np.ndarray:
    """The matrix by definition, one number at a time; f16 products as NNCF's chain computes them."""
    matrix = np.empty(new.values.shape, np.float32)
    size = new.values.shape[1] // new.scales.shape[1]
    for (o, i), value in np.ndenumerate(new.values):
        zero = 0 if new.zero_points is None else int(new.zero_points[o, i // size])
        matrix[o, i] = (int(value) - zero) * float(new.scales[o, i // size])
    return matrix


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 999), st.sampled_from(FOUR_BIT))
def test_the_layer_multiplies_with_the_inserted_weight(seed, storage):
    model, new = linear_layer(storage), random_weight(seed, storage)
    report = customize(model, [InsertWeights({"proj": new})])
    assert report.changed == 1
    np.testing.assert_allclose(multiplied_with(model), dequantized(new), rtol=1e-3)  # the chain rounds to f16
    back = read_int4_weights(model)["proj"]
    for what in ("values", "scales", "zero_points"):
        np.testing.assert_array_equal(getattr(back, what), getattr(new, what))


@pytest.mark.parametrize("storage", FOUR_BIT)
def test_what_is_read_and_dequantized_is_what_the_layer_multiplies_with(storage):
    model = linear_layer(storage)
    read = read_int4_weights(model)["proj"]
    np.testing.assert_array_equal(read.dequantize(), multiplied_with(model))
    np.testing.assert_array_equal(read.dequantize(), dequantized(read))


def test_the_scale_of_each_group_belongs_to_its_inputs():
    model, new = linear_layer("u4"), random_weight(0, "u4")
    flat = Int4Weight(np.full_like(new.values, 9), new.scales, np.full_like(new.zero_points, 8))
    customize(model, [InsertWeights({"proj": flat})])
    np.testing.assert_array_equal(multiplied_with(model), new.scales.astype(np.float32).repeat(GROUP, 1))


def test_the_zero_point_of_each_group_is_subtracted():
    model, new = linear_layer("u4"), random_weight(1, "u4")
    flat = Int4Weight(np.zeros_like(new.values), np.ones_like(new.scales), new.zero_points)
    customize(model, [InsertWeights({"proj": flat})])
    np.testing.assert_array_equal(multiplied_with(model), -new.zero_points.astype(np.float32).repeat(GROUP, 1))


def test_neighbouring_values_keep_their_places():
    model = linear_layer("u4 per channel")
    values = (np.arange(OUTPUTS * INPUTS).reshape(OUTPUTS, INPUTS) % 13).astype(np.uint8)
    new = Int4Weight(values, np.ones((OUTPUTS, 1), np.float16), np.zeros((OUTPUTS, 1), np.uint8))
    customize(model, [InsertWeights({"proj": new})])
    np.testing.assert_array_equal(multiplied_with(model), values)


@pytest.mark.parametrize("storage", FOUR_BIT)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_of_any_memory_order_and_precision_are_taken(storage, dtype):
    model, new = linear_layer(storage), random_weight(2, storage)
    zero_points = None if new.zero_points is None else np.asfortranarray(new.zero_points)
    scales = new.scales.astype(dtype)[:, ::-1].copy()[:, ::-1]  # a view that runs backwards
    customize(model, [InsertWeights({"proj": Int4Weight(np.asfortranarray(new.values), scales, zero_points)})])
    np.testing.assert_allclose(multiplied_with(model), dequantized(new), rtol=1e-3)


@pytest.mark.parametrize("storage", FOUR_BIT)
def test_only_the_named_layers_change(storage):
    model = language_model(layers=2, storage=storage)
    before = read_int4_weights(model)
    assert set(before) == {"model.embed_tokens", "lm_head"} | {
        f"model.layers.{i}.mlp.{part}_proj" for i in (0, 1) for part in ("gate", "up", "down")
    }
    names = [LAYER, "model.layers.1.mlp.down_proj"]
    new = {name: random_weight(5, storage, *before[name].values.shape) for name in names}
    report = customize(model, [InsertWeights(new)])
    assert sorted(change.node for change in report.changes) == [f"self.{name}._openvino_orig_weight" for name in names]
    after = read_int4_weights(model)
    assert set(after) == set(before)
    for name, found in after.items():
        np.testing.assert_array_equal(found.values, new.get(name, before[name]).values)
        np.testing.assert_array_equal(found.scales, new.get(name, before[name]).scales)
        np.testing.assert_array_equal(found.zero_points, new.get(name, before[name]).zero_points)


def test_a_layer_can_be_named_by_its_constant():
    model, new = linear_layer("i4"), random_weight(3, "i4")
    customize(model, [InsertWeights({"self.proj._openvino_orig_weight": new})])
    np.testing.assert_array_equal(read_int4_weights(model)["proj"].values, new.values)


def test_the_model_owns_its_new_weights(tmp_path):
    model, new = linear_layer("u4"), random_weight(4, "u4")
    expected = dequantized(new)
    customize(model, [InsertWeights({"proj": new})])
    for array in (new.values, new.scales, new.zero_points):
        array[:] = 1
    del new, array
    gc.collect()
    ballast = [np.full(OUTPUTS * INPUTS // 2, 0xAA, np.uint8) for _ in range(200)]  # takes freed memory over
    np.testing.assert_allclose(multiplied_with(model), expected, rtol=1e-3)
    ov.save_model(model, tmp_path / "model.xml")
    del model
    np.testing.assert_allclose(multiplied_with(ov.Core().read_model(tmp_path / "model.xml")), expected, rtol=1e-3)
    assert len(ballast) == 200


@pytest.mark.parametrize("storage", ["u4", "i4 per channel"])
def test_the_input_scale_multiplies_what_the_layer_reads(storage, tmp_path):
    factors = np.random.default_rng(0).uniform(0.5, 2, INPUTS).astype(np.float32)
    model, new = linear_layer(storage), replace(random_weight(6, storage), input_scale=factors)
    customize(model, [InsertWeights({"proj": new})])
    expected = dequantized(new) * factors
    np.testing.assert_allclose(multiplied_with(model), expected, rtol=2e-3)
    ov.save_model(model, tmp_path / "model.xml")
    np.testing.assert_allclose(multiplied_with(ov.Core().read_model(tmp_path / "model.xml")), expected, rtol=2e-3)


def test_the_input_scale_is_for_the_named_layer_alone():
    """up_proj and gate_proj of a real layer read the same tensor."""
    value = ops.parameter([-1, -1, INPUTS], np.float32)
    matrix = np.random.default_rng(0).standard_normal((OUTPUTS, INPUTS), np.float32)
    both = [ops.matmul(value, weight(matrix, "u4", name), False, True) for name in ("one", "other")]
    model = ov.Model(both, [value], "two")
    inputs = np.eye(INPUTS, dtype=np.float32)[None]
    before = [run(model, inputs, i) for i in (0, 1)]
    new = replace(read_int4_weights(model)["one"], input_scale=np.full(INPUTS, 2, np.float32))
    customize(model, [InsertWeights({"one": new})])
    np.testing.assert_array_equal(run(model, inputs, 0), 2 * before[0])
    np.testing.assert_array_equal(run(model, inputs, 1), before[1])


GOOD = random_weight(7, "u4", 64)
SYMMETRIC = random_weight(7, "i4", 64)
MISFITS = {
    "fewer outputs": (replace(GOOD, values=GOOD.values[:-1]), r"values have shape \[63, 32\].*takes \[64, 32\]"),
    "transposed": (replace(GOOD, values=GOOD.values.T), r"values have shape \[32, 64\]"),
    "values of one axis": (replace(GOOD, values=GOOD.values[0]), "values"),
    "values in a list": (replace(GOOD, values=GOOD.values.tolist()), "values"),
    "larger groups": (
        replace(GOOD, scales=GOOD.scales[:, :1], zero_points=GOOD.zero_points[:, :1]),
        r"scales have shape \[64, 1\] \(groups of 32\), the layer takes \[64, 2\]",
    ),
    "scales of one axis": (replace(GOOD, scales=GOOD.scales[:, 0]), "scales"),
    "one scale": (replace(GOOD, scales=np.float16(1)), "scales"),
    "zero points of fewer groups": (
        replace(GOOD, zero_points=GOOD.zero_points[:, :1]),
        r"zero points have shape \[64, 1\], the layer takes \[64, 2\]",
    ),
    "another type": (replace(GOOD, values=GOOD.values.astype(np.int64)), "values must be uint8 from 0 to 15"),
    "floats": (replace(GOOD, values=GOOD.values.astype(np.float32)), "values must be uint8 from 0 to 15"),
    "signed zero points": (replace(GOOD, zero_points=GOOD.zero_points.astype(np.int8)), "zero points must be uint8"),
    "a value of 16": (replace(GOOD, values=GOOD.values + np.uint8(16)), "values must be uint8 from 0 to 15"),
    "a zero point of 16": (
        replace(GOOD, zero_points=np.full_like(GOOD.zero_points, 16)),
        "zero points must be uint8 from 0 to 15",
    ),
    "a symmetric weight": (SYMMETRIC, "symmetric i4, the graph has u4"),
    "a scale that is no number": (replace(GOOD, scales=GOOD.scales * np.float16(np.nan)), "scales must be finite"),
    "an infinite scale": (replace(GOOD, scales=GOOD.scales * np.float16(np.inf)), "scales must be finite"),
    "whole scales": (replace(GOOD, scales=np.ones_like(GOOD.scales, int)), "scales must be finite floating-point"),
    "a scale beyond f16": (replace(GOOD, scales=np.full(GOOD.scales.shape, 7e4)), "scales exceed 65504"),
    "an input scale of another width": (
        replace(GOOD, input_scale=np.ones(64, np.float32)),
        r"input scale has shape \[64\], the layer has 32 inputs",
    ),
    "an input scale that is no number": (replace(GOOD, input_scale=np.full(32, np.nan, np.float32)), "input.scale"),
    "an input scale in a list": (replace(GOOD, input_scale=[1.0] * 32), "input.scale"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_weight_that_does_not_fit_is_refused_by_its_layers_name(name):
    new, message = MISFITS[name]
    model = language_model(storage="u4")
    graph = fingerprint(model)
    good = random_weight(1, "u4", 32, 64)
    with pytest.raises(ValueError, match=f"^Layer {LAYER}: .*{message}"):
        customize(model, [InsertSlice(), InsertWeights({LAYER: new, "model.layers.0.mlp.down_proj": good})])
    assert fingerprint(model) == graph


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (SYMMETRIC.values.astype(np.int16), "values must be int8 from -8 to 7"),
        (SYMMETRIC.values - np.int8(1), "values must be int8 from -8 to 7"),
        (SYMMETRIC.values + np.int8(1), "values must be int8 from -8 to 7"),
    ],
)
def test_symmetric_values_have_a_range_of_their_own(values, message):
    model = language_model(storage="i4")
    graph = fingerprint(model)
    with pytest.raises(ValueError, match=f"^Layer {LAYER}: .*{message}"):
        customize(model, [InsertWeights({LAYER: replace(SYMMETRIC, values=values)})])
    assert fingerprint(model) == graph


def test_an_asymmetric_weight_is_refused_by_a_symmetric_layer():
    with pytest.raises(ValueError, match=f"^Layer {LAYER}: .*asymmetric u4, the graph has i4"):
        customize(language_model(storage="i4"), [InsertWeights({LAYER: GOOD})])


def test_a_symmetric_weight_fits_an_asymmetric_layer_as_the_message_says():
    model, new = linear_layer("u4"), random_weight(8, "i4")
    shifted = Int4Weight((new.values + 8).astype(np.uint8), new.scales, np.full(new.scales.shape, 8, np.uint8))
    customize(model, [InsertWeights({"proj": shifted})])
    np.testing.assert_allclose(multiplied_with(model), dequantized(new), rtol=1e-3)


@pytest.mark.parametrize("storage", ["f16", "int8", "u4"])
def test_an_unknown_layer_is_named(storage):
    model = language_model(storage=storage)
    graph = fingerprint(model)
    with pytest.raises(ValueError, match="1 of 1 layers are not in this model as 4-bit weights: model.layers.9.mlp"):
        customize(model, [InsertWeights({"model.layers.9.mlp": GOOD})])
    assert fingerprint(model) == graph


def test_one_unknown_layer_keeps_the_known_one_out():
    model = language_model(storage="u4")
    graph = fingerprint(model)
    with pytest.raises(ValueError, match="1 of 2 layers are not in this model.*: nowhere"):
        customize(model, [InsertWeights({LAYER: GOOD, "nowhere": GOOD})])
    assert fingerprint(model) == graph


def test_a_constant_that_two_layers_share_is_not_changed_for_both():
    value = ops.parameter([-1, -1, INPUTS], np.float32)
    matrix = np.random.default_rng(0).standard_normal((OUTPUTS, INPUTS), np.float32)
    both = [ops.matmul(value, weight(matrix, "u4", name), False, True) for name in ("one", "other")]
    model = ov.Model(both, [value], "two")
    one, other = (
        next(n for n in model.get_ops() if n.get_friendly_name() == f"self.{name}._openvino_orig_weight/zero_point")
        for name in ("one", "other")
    )
    for port in other.output(0).get_target_inputs():
        port.replace_source_output(one.output(0))
    graph = fingerprint(model)
    with pytest.raises(ValueError, match="^Layer one: .* another layer"):
        customize(model, [InsertWeights({"one": random_weight(0, "u4")})])
    assert fingerprint(model) == graph


def test_the_embeddings_input_cannot_be_scaled():
    model = language_model(storage="u4", tied=True)
    graph = fingerprint(model)
    new = replace(read_int4_weights(model)["model.embed_tokens"], input_scale=np.ones(32, np.float32))
    with pytest.raises(ValueError, match="^Layer model.embed_tokens: "):
        customize(model, [InsertWeights({"model.embed_tokens": new})])
    assert fingerprint(model) == graph


# --- From one compressed model to another ---------------------------------------------------------------------

METHODS = {
    "base": {},
    "scale estimation": {"data": True, "scale_estimation": True},
    "GPTQ": {"data": True, "gptq": True},
    "AWQ": {"data": True, "awq": True},
}
GROUPED = {"mode": "INT4_ASYM", "group_size": 32}
PROMPT = token_ids(0, tokens=12, vocabulary=256)


@pytest.fixture(scope="module")
def compressed(llama):
    """The random Llama compressed by NNCF, by method."""
    return {name: compress(llama, **GROUPED, **options) for name, options in METHODS.items()}


def test_the_better_methods_differ_from_the_base(compressed):
    """Otherwise the tests below would show nothing."""
    logits = {name: stateful_logits(model, PROMPT) for name, model in compressed.items()}
    for name in ("scale estimation", "GPTQ", "AWQ"):
        assert np.abs(logits[name] - logits["base"]).max() > 1e-2 * np.abs(logits["base"]).max()


@pytest.mark.parametrize("method", ["scale estimation", "GPTQ", "AWQ"])
def test_all_layers_of_a_donor_make_the_donor(compressed, method):
    target, donor = compressed["base"].clone(), compressed[method]
    weights = weights_from(donor, target)
    assert len(weights) == 14 and all(one.input_scale is None for one in weights.values())
    assert customize(target, [InsertWeights(weights)]).changed == 14
    np.testing.assert_array_equal(stateful_logits(target, PROMPT), stateful_logits(donor, PROMPT))


@settings(max_examples=6, deadline=None)
@given(st.data(), st.sampled_from(["scale estimation", "GPTQ"]))
def test_any_layers_of_a_donor_that_only_rounds_better_can_be_taken(compressed, data, method):
    target, donor = compressed["base"].clone(), compressed[method]
    have, base = read_int4_weights(donor), read_int4_weights(target)
    layers = data.draw(st.lists(st.sampled_from(sorted(have)), unique=True, min_size=1))
    weights = weights_from(donor, target, layers)
    assert list(weights) == layers
    customize(target, [InsertWeights(weights)])
    for name, found in read_int4_weights(target).items():
        np.testing.assert_array_equal(found.values, (have if name in layers else base)[name].values)


def refusal(donor: ov.Model, target: ov.Model, layers: list[str]) -> str:
    """The error message for layers that cannot be taken, or an empty string."""
    try:
        weights_from(donor, target, layers)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("storage", ["u4", "i4 per channel"])
def test_one_layer_of_a_rescaled_pair_is_refused(storage):
    """Layer by layer, whether the donor or the target was rescaled; made by hand, so that the factors are known."""
    target = language_model(layers=2, storage=storage)
    factors = np.random.default_rng(0).uniform(0.4, 2.5, INNER).astype(np.float32)
    donor = language_model(layers=2, storage=storage, rescale=factors)
    for i in (0, 1):
        pair = [f"model.layers.{i}.mlp.{part}_proj" for part in ("down", "up")]
        expected = f"{pair[0]} and {pair[1]} were rescaled against each other (AWQ)"
        for layer in pair:
            assert expected in refusal(donor, target, [layer])
            assert expected in refusal(target, donor, [layer])
        assert refusal(donor, target, [*pair, f"model.layers.{i}.mlp.gate_proj"]) == ""


@pytest.mark.parametrize("i", [0, 1])
@pytest.mark.parametrize("part", ["up_proj", "down_proj"])
def test_a_pair_that_nncf_rescaled_is_refused(compressed, i, part):
    """The second layer's factors stay under 1.3, so they must be recognised by their pattern, not by their size."""
    expected = f"model.layers.{i}.mlp.down_proj and model.layers.{i}.mlp.up_proj were rescaled"
    layers = [f"model.layers.{i}.mlp.{part}"]
    assert expected in refusal(compressed["AWQ"], compressed["base"], layers)
    assert expected in refusal(compressed["base"], compressed["AWQ"], layers)


def test_a_rescaled_pair_is_taken_whole(compressed):
    target, donor = compressed["base"].clone(), compressed["AWQ"]
    pair = [f"model.layers.0.mlp.{part}_proj" for part in ("up", "down")]
    weights = weights_from(donor, target, [*pair, "model.layers.1.self_attn.q_proj"])
    assert list(weights) == [*pair, "model.layers.1.self_attn.q_proj"]
    customize(target, [InsertWeights(weights)])
    have, base = read_int4_weights(donor), read_int4_weights(compressed["base"])
    for name, found in read_int4_weights(target).items():
        np.testing.assert_array_equal(found.values, (have if name in weights else base)[name].values)


def relu_phi():
    """A random Phi whose fc2 reads a ReLU: there AWQ has no weight to move its factors into, and puts a Multiply."""
    import torch
    from transformers import PhiConfig, PhiForCausalLM

    torch.manual_seed(0)
    config = PhiConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        hidden_act="relu",
    )
    return PhiForCausalLM(config)


@pytest.fixture(scope="module")
def phi(tmp_path_factory):
    """(base, AWQ) of the Phi: as NNCF returns them, and as they come back from disk."""
    folder = tmp_path_factory.mktemp("phi")
    xml = export(relu_phi(), folder)
    models = [compress(xml, **GROUPED, **METHODS[name]) for name in ("base", "AWQ")]
    for i, model in enumerate(models):
        ov.save_model(model, folder / f"{i}.xml")
    return {"compressed": models, "saved": [ov.Core().read_model(folder / f"{i}.xml") for i in (0, 1)]}


@pytest.mark.parametrize("where", ["compressed", "saved"])
def test_factors_before_a_layer_come_along(phi, where):
    base, donor = phi[where]
    layer = "model.layers.0.mlp.fc2"
    assert any(node.get_friendly_name().endswith("/awq_mul") for node in donor.get_ops())
    target = base.clone()
    weights = weights_from(donor, target)
    assert [name for name, one in weights.items() if one.input_scale is not None] == [layer]
    customize(target, [InsertWeights(weights)])
    logits = [stateful_logits(model, PROMPT) for model in (base, donor, target)]
    assert np.abs(logits[0] - logits[1]).max() > 1e-2 * np.abs(logits[1]).max()
    np.testing.assert_array_equal(logits[2], logits[1])


def test_a_layer_with_factors_can_be_taken_alone(phi):
    base, donor = phi["compressed"]
    layer, target = "model.layers.0.mlp.fc2", base.clone()
    weights = weights_from(donor, base, [layer])
    factors = weights[layer].input_scale
    assert list(weights) == [layer] and factors.shape == (128,)
    customize(target, [InsertWeights(weights)])
    sources = {node.get_friendly_name(): node for node in target.get_ops()}
    product = next(node for name, node in sources.items() if name.endswith("/input_scale"))
    np.testing.assert_array_equal(product.input_value(1).get_node().get_data().ravel(), factors)
    expected = read_int4_weights(donor)[layer]
    np.testing.assert_array_equal(read_int4_weights(target)[layer].dequantize(), expected.dequantize())


def test_a_donor_with_another_norm_is_refused(compressed):
    donor = compressed["scale estimation"].clone()
    constants = [node for node in donor.get_ordered_ops() if node.get_type_name() == "Constant"]
    gain = next(node for node in constants if list(node.get_output_shape(0)) == [1, 1, 64])
    new = ops.constant(gain.get_data() * 2)
    for port in gain.output(0).get_target_inputs():
        port.replace_source_output(new.output(0))
    with pytest.raises(ValueError, match="differs from the target outside its 4-bit weights"):
        weights_from(donor, compressed["base"])


def test_a_donor_with_another_embedding_is_refused(llama, compressed):
    with pytest.raises(ValueError, match="differs from the target outside its 4-bit weights"):
        weights_from(compress(llama, **GROUPED, backup_mode=backup("NONE")), compressed["base"])


def backup(name: str):
    import nncf

    return nncf.BackupMode[name]


def test_layers_that_are_not_in_both_are_named(llama, compressed):
    with pytest.raises(ValueError, match="Not 4-bit weights of both models: lm_head, nowhere"):
        weights_from(compressed["AWQ"], compressed["base"], ["nowhere", "lm_head", "model.layers.0.mlp.up_proj"])
    with pytest.raises(ValueError, match="Not 4-bit weights of both models: model.layers.0.mlp.down_proj"):
        weights_from(compressed["base"], compress(llama, "INT8_ASYM"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "INT4_ASYM", "group_size": -1}, r"scales have shape \[64, 1\] \(groups of 64\)"),
        ({"mode": "INT4_SYM", "group_size": 32}, "symmetric i4, the graph has u4"),
    ],
)
def test_a_donor_of_another_kind_is_refused_on_insertion(llama, compressed, options, message):
    target = compressed["base"].clone()
    graph = fingerprint(target)
    donor = compress(llama, **options)
    layer = "model.layers.0.self_attn.q_proj"
    with pytest.raises(ValueError, match=f"^Layer {layer}: .*{message}"):
        customize(target, [InsertWeights(weights_from(donor, target, [layer]))])
    assert fingerprint(target) == graph


@pytest.mark.parametrize(("mode", "group_size"), [("INT4_SYM", 32), ("INT4_SYM", -1), ("INT4_ASYM", -1)])
def test_other_kinds_of_compression_take_weights_too(llama, mode, group_size):
    target = compress(llama, mode, group_size=group_size)
    donor = compress(llama, mode, group_size=group_size, data=True, scale_estimation=True)
    base = stateful_logits(target, PROMPT)
    customize(target, [InsertWeights(weights_from(donor, target))])
    expected = stateful_logits(donor, PROMPT)
    assert np.abs(expected - base).max() > 1e-2 * np.abs(expected).max()
    np.testing.assert_array_equal(stateful_logits(target, PROMPT), expected)
