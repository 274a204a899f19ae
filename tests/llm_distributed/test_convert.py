"""Cutting: a share holds its rows and columns; compressed groups stay those of the whole model."""

import json

import numpy as np
import openvino as ov
import pytest
from safetensors.numpy import load_file

from notebooks.llm_distributed import convert
from notebooks.llm_distributed.convert import cutting
from notebooks.llm_distributed.pipeline.graph import MODEL_XML
from tests.llm_distributed import small


def test_the_shares_of_a_checkpoint_are_its_rows_and_columns(llama, tmp_path):
    whole, parts = load_file(llama / "model.safetensors"), []
    for share in cutting.plan_of(llama, 2, small.MULTIPLE):
        folder = tmp_path / str(share.rank)
        folder.mkdir()
        cutting.cut(llama, share, folder)
        parts.append(load_file(folder / "model.safetensors"))
    assert parts[0].keys() == parts[1].keys() == whole.keys()
    for name, values in whole.items():
        if "norm" in name:
            assert np.array_equal(parts[1][name], values)
        else:
            axis = 1 if "o_proj" in name or "down_proj" in name else 0
            assert np.array_equal(np.concatenate([part[name] for part in parts], axis), values)


def test_a_share_is_a_narrower_model(llama, tmp_path):
    share = cutting.plan_of(llama, 2, small.MULTIPLE)[1]
    config = json.loads((cutting.cut(llama, share, tmp_path) / "config.json").read_text(encoding="utf-8"))
    narrow = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "hidden_size")
    assert [config[key] for key in narrow] == [2, 1, 16, 50, 48]


def four_bit(folder, layer: str) -> np.ndarray:
    """The 4-bit values [rows, columns] of a layer."""
    model = ov.Core().read_model(folder / MODEL_XML)
    node = next(
        n for n in model.get_ops() if f".{layer}." in n.get_friendly_name() and n.get_element_type() == ov.Type.u4
    )
    packed = node.get_data().view(np.uint8).ravel()
    values = np.stack([packed & 15, packed >> 4], 1).ravel()
    return values.reshape(node.get_output_shape(0)[0], -1)


def test_the_groups_of_4_bit_weights_are_those_of_the_whole_model(llama, tmp_path):
    options, found = {"mode": "INT4_ASYM", "group_size": 16}, {}
    for ranks in (1, 2):
        folders = small.shares(llama, ranks, tmp_path / f"fp16-{ranks}")
        cutting.compress(tmp_path / f"fp16-{ranks}", options, tmp_path / f"int4-{ranks}")
        compressed = [tmp_path / f"int4-{ranks}" / folder.name for folder in folders]
        found[ranks] = [four_bit(folder, "layers.0.mlp.down_proj") for folder in compressed]
    assert np.array_equal(np.concatenate(found[2], 1), found[1][0])


def test_columns_that_are_cut_inside_a_group_are_not_compressed(llama, tmp_path):
    import nncf

    small.shares(llama, 2, tmp_path / "fp16", multiple=10)
    with pytest.raises(nncf.errors.InvalidGroupSizeError, match="channel size: 30"):
        cutting.compress(tmp_path / "fp16", {"mode": "INT4_ASYM", "group_size": 16}, tmp_path / "int4")


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match="no precision 'INT2'. Choose one of: FP16, INT8, INT4"):
        convert.prepare("tiny", 2, "INT2")
    with pytest.raises(ValueError, match="no model 'huge'"):
        convert.prepare("huge")


def test_too_many_ranks_are_an_error_before_anything_is_converted():
    with pytest.raises(ValueError, match="10 ranks cannot share 9 attention heads"):
        convert.prepare("tiny", 10)
