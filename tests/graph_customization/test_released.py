"""MODEL=released end to end, against a small hub on this machine that serves random models of the same kind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from notebooks.graph_customization import convert
from tests.servers import ModelHub

REPOSITORY = "Qwen/Qwen2.5-1.5B-Instruct"
COMMIT = "5" * 40
SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np, openvino as ov, openvino_genai
from notebooks.graph_customization.convert import MODEL_XML, MODELS, prepare
from notebooks.graph_customization.pipeline import InsertSlice, customize
from utils import paths
from utils.models.llm import FP32_PROPERTIES, Session

paths.ROOT = Path(sys.argv[1])
MODELS["released"]["ram_gb"] = 1  # the random model is smaller than the released one
folder = prepare("released", "INT4")
graph = ov.Core().read_model(folder / MODEL_XML)
prompt = np.arange(5, 25)[None]
before = Session(graph, **FP32_PROPERTIES).generate(prompt, 8).tolist()
report = customize(graph, [InsertSlice()])
after = Session(graph, **FP32_PROPERTIES).generate(prompt, 8).tolist()
text = openvino_genai.LLMPipeline(str(folder), "CPU").generate("abc", max_new_tokens=4)
print(json.dumps({"changed": report.changed, "before": before, "after": after, "text": text}))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    """A random Qwen2 with Qwen's file layout: untied head, 256 byte tokens."""
    folder = tmp_path_factory.mktemp("qwen")
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    Qwen2ForCausalLM(config).half().save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate([*alphabet, "<end>"])}, []))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_released_is_fetched_recorded_converted_and_customized(files, tmp_path):
    root = tmp_path / "collection"
    notebook = root / "notebooks" / "graph_customization"
    notebook.mkdir(parents=True)
    shutil.copy(Path(convert.__file__).with_name("checkpoints.toml"), notebook)
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    with ModelHub({REPOSITORY: {COMMIT: files}}) as hub:
        environment = os.environ | {
            "HF_ENDPOINT": hub.address,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_OFFLINE": "0",
            "MODELS_DIR": str(tmp_path / "models"),
        }
        command = [sys.executable, tmp_path / "script.py", root]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["changed"] == 1
    assert result["after"] == result["before"]
    assert isinstance(result["text"], str)
    lock = json.loads((notebook / "checkpoints.lock.json").read_text(encoding="utf-8"))
    assert lock["qwen2_5_1_5b"]["revision"] == COMMIT
    assert set(lock["qwen2_5_1_5b"]["files"]) >= {"config.json", "model.safetensors", "tokenizer.json"}
