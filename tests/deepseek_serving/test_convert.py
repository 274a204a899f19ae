"""What is served is what the collection converts once: names, precisions, and a fit of repository and IR."""

import json

import pytest

from notebooks.deepseek_serving import convert
from notebooks.graph_customization import convert as other_room
from utils import weights


@pytest.mark.parametrize(("precision", "same"), [("FP16", "FP16"), ("INT8", "INT8"), ("INT4", "INT4 scale estimation")])
def test_the_tiny_model_is_the_conversion_of_the_other_lesson(precision, same):
    assert convert.prepare("tiny", precision) == other_room.prepare("tiny", same)


def test_the_default_is_four_bits():
    folder = convert.prepare()
    recorded = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["inputs"]["arguments"]
    assert recorded == {"mode": "INT4_ASYM", "scale_estimation": True, "group_size": 64}
    names = {file.name for file in folder.iterdir()}
    assert names >= {"openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml", "config.json"}


@pytest.mark.parametrize(
    ("model", "precision", "sentence"),
    [("huge", "INT4", "There is no model 'huge'"), ("tiny", "INT2", "There is no INT2 of tiny")],
)
def test_an_unknown_name_is_a_sentence_that_lists_the_known(model, precision, sentence):
    with pytest.raises(ValueError, match=f"{sentence}. Choose one of: (tiny, released|INT4, INT8)"):
        convert.prepare(model, precision)


def test_every_model_has_a_declared_checkpoint():
    declared = weights.sources()
    for settings in convert.MODELS.values():
        assert declared[settings["checkpoint"]].licence in {"MIT", "Apache-2.0"}
    released = [settings for name, settings in convert.MODELS.items() if name.startswith("released")]
    assert all("deepseek-ai/DeepSeek-R1-Distill-Qwen" in declared[one["checkpoint"]].repo for one in released)
    assert all(one["thinks"] for one in released)
