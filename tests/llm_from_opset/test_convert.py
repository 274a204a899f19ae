"""Folders that are written from a checkpoint: without PyTorch, with little memory, and opened by openvino_genai."""

import os
import subprocess
import sys

import numpy as np
import openvino as ov
import pytest
from safetensors.numpy import save_file

from notebooks.llm_from_opset import __main__ as command
from notebooks.llm_from_opset import convert, measuring, pipeline
from tests.llm_from_opset import small
from utils.models.llm import FP32_PROPERTIES, MODEL_XML, Session
from utils.paths import ROOT

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from notebooks.llm_from_opset import convert
convert.to_ir(Path(sys.argv[1]), "INT4", 64, Path(sys.argv[2]))
print("torch" in sys.modules and sys.modules["torch"])
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder with a random Qwen2."""
    folder, network = tmp_path_factory.mktemp("qwen2"), small.network("qwen2")
    save_file({n: x.astype(np.float16) for n, x in small.tensors(network).items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(network.config.to_json_string(), encoding="utf-8")
    return folder


@pytest.mark.parametrize("precision", pipeline.PRECISIONS)
def test_the_saved_model_is_the_built_one(checkpoint, tmp_path, precision):
    pipeline.convert(checkpoint, tmp_path, precision)
    assert {file.name for file in tmp_path.iterdir()} == {MODEL_XML, "openvino_model.bin"}
    source, ids = pipeline.Checkpoint(checkpoint), np.random.default_rng(0).integers(1, 300, (2, 9))
    built = Session(pipeline.build(source.config, source, precision), **FP32_PROPERTIES).prefill(ids)
    np.testing.assert_array_equal(Session(tmp_path / MODEL_XML, **FP32_PROPERTIES).prefill(ids), built)


def test_fp16_weights_are_marked_as_decompression(checkpoint, tmp_path):
    pipeline.convert(checkpoint, tmp_path, "FP16")
    assert (tmp_path / MODEL_XML).read_text(encoding="utf-8").count('"decompression"') == 2 + 2 * 7  # matrices


def test_arrays_in_a_file_take_no_memory_of_the_process(tmp_path):
    scratch = pipeline.Scratch(tmp_path / "arrays")
    first, second = scratch.empty((3, 5), np.uint8), scratch.empty((2,), np.float16)
    first[:], second[:] = 7, 0.5
    assert (first == 7).all() and (second == 0.5).all() and isinstance(first, np.memmap)
    assert (tmp_path / "arrays").stat().st_size == 64 + 4


def test_it_works_without_torch_and_genai_opens_it(tmp_path):
    import openvino_genai as genai

    program = [sys.executable, "-c", WITHOUT_TORCH, str(convert.checkpoint_folder()), str(tmp_path)]
    run = subprocess.run(program, cwd=ROOT, env=os.environ, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0 and run.stdout.strip() == "None", run.stderr
    settings = genai.GenerationConfig(max_new_tokens=8)
    answer = genai.LLMPipeline(str(tmp_path), "CPU", **FP32_PROPERTIES).generate(
        "What is the capital of France?", settings
    )
    assert answer.startswith("The capital of France is Paris")


def test_both_pipelines_of_genai_give_the_tokens_of_the_loop():
    folder, prompt = convert.prepare("tiny", "INT8"), np.arange(100, 120)[None]
    expected = Session(folder / MODEL_XML, **FP32_PROPERTIES).generate(prompt, 12)
    for name in ("LLMPipeline", "ContinuousBatchingPipeline"):
        np.testing.assert_array_equal(measuring.genai_tokens(folder, prompt, 12, name), expected)


@pytest.mark.parametrize(("model", "precision"), [("huge", "INT8"), ("tiny", "INT2")])
def test_an_unknown_name_is_an_error(model, precision):
    with pytest.raises(ValueError, match="Models: tiny, released; precisions: FP16, INT8, INT4"):
        convert.prepare(model, precision)


def test_the_command_writes_a_folder(tmp_path, capsys):
    assert command.main([str(convert.checkpoint_folder()), str(tmp_path / "out"), "--precision", "INT8"]) == 0
    assert (tmp_path / "out" / "openvino_tokenizer.xml").is_file()
    assert ov.Core().read_model(tmp_path / "out" / MODEL_XML).get_sinks()
    assert command.main([str(tmp_path), str(tmp_path / "other")]) == 1
    assert "needs config.json and *.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
