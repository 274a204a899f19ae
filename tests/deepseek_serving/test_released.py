"""MODEL=released end to end, against a small hub on this machine: fetched, converted, served, thoughts split."""

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

from notebooks.deepseek_serving import convert
from tests.servers import ModelHub

REPOSITORY = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
COMMIT = "d" * 40
# Ends, as DeepSeek's does, within the thoughts.
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
SCRIPT = """
import json, sys
from pathlib import Path
from notebooks.deepseek_serving import convert
from notebooks.deepseek_serving.pipeline import Client
from notebooks.deepseek_serving.server import repository, serve
from utils import paths

paths.ROOT = Path(sys.argv[1])
convert.MODELS["released"]["ram_gb"] = 1  # the random model is smaller than the released one
folder = repository.write(Path(sys.argv[1]) / "models", "released", convert.prepare("released"))
with serve(folder, kind="local", quiet=True) as server:
    with Client(server.url, thinks=convert.MODELS["released"]["thinks"]) as client:
        reply = client.chat("abc", max_tokens=8, temperature=0, ignore_eos=True)
print(json.dumps({"tokens": reply.completion_tokens, "prompt": reply.prompt_tokens,
                  "reasoning": reply.reasoning, "answer": reply.answer}))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    """A random Qwen2 with 256 byte tokens and a chat template that opens the thoughts."""
    folder = tmp_path_factory.mktemp("qwen")
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    Qwen2ForCausalLM(config).half().save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate([*alphabet, "<end>"])}, []))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>", pad_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".jinja"} | {
        "tokenizer_config.json": _with_template(folder / "tokenizer_config.json")
    }


def _with_template(file: Path) -> bytes:
    """DeepSeek's repositories keep the template in tokenizer_config.json."""
    return json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"chat_template": TEMPLATE}).encode()


def test_released_is_fetched_recorded_converted_and_served(files, tmp_path):
    root = tmp_path / "collection"
    notebook = root / "notebooks" / "deepseek_serving"
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
    assert run.returncode == 0, run.stderr[-3000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["prompt"] == len("abc<think>\n"), "the template was not applied"
    assert result["tokens"] == 8
    assert result["answer"] == "", "all of it is thoughts as long as </think> has not come"
    lock = json.loads((notebook / "checkpoints.lock.json").read_text(encoding="utf-8"))
    assert lock["deepseek_r1_distill_qwen_1_5b"]["revision"] == COMMIT
    assert set(lock["deepseek_r1_distill_qwen_1_5b"]["files"]) >= {"config.json", "model.safetensors"}
