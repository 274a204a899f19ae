"""Conversions: shared with the other notebook that has the model, and errors for unknown names."""

import json

import pytest

from notebooks.deepseek_serving import convert
from notebooks.graph_customization import convert as graph_customization
from utils import preflight, weights
from utils.models import gguf, llm


def test_two_notebooks_share_the_conversions_of_the_tiny_model(tmp_path, monkeypatch):
    checkpoint, steps = tmp_path / "model.gguf", []
    checkpoint.write_bytes(b"weights")
    monkeypatch.setenv("MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setattr(weights, "resolve", lambda name: checkpoint)

    def in_child(step, *arguments, **options):
        steps.append(step.__name__)
        (arguments[-1] / "model").write_text(str(arguments[:-1]), encoding="utf-8")

    monkeypatch.setattr(preflight, "in_child", in_child)
    shared = {"FP16": "FP16", "INT8": "INT8", "INT4": "INT4 scale estimation"}
    for precision, same in shared.items():
        assert convert.prepare("tiny", precision) == graph_customization.prepare("tiny", same)
    assert convert.checkpoint_folder("tiny") == graph_customization.checkpoint_folder("tiny")
    assert steps == [gguf.to_transformers.__name__, llm.to_ir.__name__, *[llm.compress.__name__] * 2]


def test_the_default_is_four_bits():
    folder = convert.prepare()
    recorded = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["inputs"]["arguments"]
    assert recorded == {"mode": "INT4_ASYM", "scale_estimation": True, "group_size": 64}
    names = {file.name for file in folder.iterdir()}
    assert names >= {"openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml", "config.json"}


@pytest.mark.parametrize(
    ("model", "precision", "message"),
    [("huge", "INT4", "There is no model 'huge'"), ("tiny", "INT2", "There is no INT2 of tiny")],
)
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(model, precision, message):
    with pytest.raises(ValueError, match=f"{message}. Choose one of: (tiny, released|INT4, INT8)"):
        convert.prepare(model, precision)


def test_every_model_has_a_declared_checkpoint():
    declared = weights.sources()
    for settings in convert.MODELS.values():
        assert declared[settings["checkpoint"]].licence in {"MIT", "Apache-2.0"}
    released = [settings for name, settings in convert.MODELS.items() if name.startswith("released")]
    assert all("deepseek-ai/DeepSeek-R1-Distill-Qwen" in declared[one["checkpoint"]].repo for one in released)
    assert all(one["thinks"] for one in released)
