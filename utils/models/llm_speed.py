"""Speed of language models: the settings of OpenVINO and of its peers that several notebooks compare.

Each `start_*` is a `start` of `bench.Setting`: it loads a model and returns the two workloads, FIRST and DECODE. Every
call gets a new random prompt, because openvino_genai caches earlier ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from utils import bench
from utils.convert import cached_in_child
from utils.models.llm import MODEL_XML, Session

if TYPE_CHECKING:
    import openvino as ov

PREFILL_TOKENS = 512  # prompt of the prefill workload
DECODE_PROMPT_TOKENS = 16  # prompt of the decoding workload
DECODE_TOKENS = 32  # generated in the decoding workload
FIRST = f"first token of a {PREFILL_TOKENS}-token prompt"
DECODE = f"{DECODE_TOKENS} tokens after a {DECODE_PROMPT_TOKENS}-token prompt"
WORKLOADS = [
    bench.Workload(FIRST, PREFILL_TOKENS, "prompt tokens/s"),
    bench.Workload(DECODE, DECODE_TOKENS, "tokens/s"),
]
FIRST_ID, END_ID = 100, 40_000  # the range of the tokens in random prompts
ONNX_BLOCK = 128  # weights to a scale in ONNX Runtime GenAI's INT4
TORCH_TYPES = {"BF16": "bfloat16", "FP32": "float32"}

Generate = Callable[[np.ndarray, int], object]  # token ids [1, n], number of tokens to generate
Change = Callable[["ov.Model"], None]


def openvino_setting(runtime: str, precision: str, folder: Path, change: Change | None = None) -> bench.Setting:
    """OpenVINO's own runtime on an IR folder. change: an importable function that changes the graph before it is
    compiled."""
    return bench.Setting(runtime, precision, start_openvino, (folder, change), weights_mb(folder))


def genai_setting(
    precision: str, folder: Path, runtime: str = "openvino_genai", properties: Mapping[str, object] | None = None
) -> bench.Setting:
    """openvino_genai's LLMPipeline on an IR folder. properties: of the device."""
    arguments = (folder, tuple((properties or {}).items()))
    return bench.Setting(runtime, precision, start_genai, arguments, weights_mb(folder))


def torch_settings(checkpoint: Path, compiling: bool = False) -> list[bench.Setting]:
    """PyTorch on a transformers folder: eager in FP32, and in BF16 where the processor has it.

    compiling: whether torch.compile with a static cache is among them; it takes minutes to compile.
    """
    kinds = {"torch eager": start_torch} | ({"torch.compile, static cache": start_compiled} if compiling else {})
    size = bench.size_mb(checkpoint)
    return [
        bench.Setting(runtime, precision, start, (checkpoint, precision), size)
        for runtime, start in kinds.items()
        for precision in bench.torch_precisions()
    ]


def onnx_setting(folder: Path) -> bench.Setting:
    """ONNX Runtime GenAI on its own INT4 model."""
    return bench.Setting("onnxruntime-genai", "INT4", start_onnx, (folder,), bench.size_mb(folder / "model.onnx.data"))


def onnx_folder(name: str, checkpoint: Path) -> Path:
    """ONNX Runtime GenAI's INT4 model of a transformers folder. It is made once and cached.

    name: of the checkpoint in checkpoints.toml.
    """
    versions = ("onnxruntime-genai", "onnx-ir")
    return cached_in_child(f"{name}-onnx-int4", to_onnx, checkpoint, checkpoint=checkpoint, versions=versions)


def to_onnx(checkpoint: Path, folder: Path) -> None:
    """Write the model of `onnx_folder` with ONNX Runtime GenAI's own builder."""
    with TemporaryDirectory() as scratch:
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        options = ["-p", "int4", "-e", "cpu", "-c", scratch, "-i", checkpoint, "-o", folder]
        # Logits of the last token only; blocks of its default 32 weights take 1.2 times as long to decode.
        options += ["--extra_options", "prune_lm_head=true", f"block_size={ONNX_BLOCK}"]
        offline = os.environ | {"HF_HUB_OFFLINE": "1"}  # all files are on disk
        subprocess.run([*builder, *options], check=True, env=offline, capture_output=True)


def weights_mb(folder: Path) -> float:
    """The size of the weights of an IR folder."""
    return bench.size_mb((folder / MODEL_XML).with_suffix(".bin"))


def layer_weights(config: Mapping) -> int:
    """The weights of the matrices in a language model's layers; config: of transformers, as a dict.

    A token of a prompt takes two operations for each. The output layer is not among them.
    """
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv = hidden * config.get("num_key_value_heads", heads) // heads
    return config["num_hidden_layers"] * (2 * hidden * (hidden + kv) + 3 * hidden * config["intermediate_size"])


def start_openvino(folder: Path, change: Change | None) -> dict[str, Callable]:
    import openvino as ov

    model = ov.Core().read_model(folder / MODEL_XML)
    if change:
        change(model)
    return workloads(Session(model).generate)


def start_genai(folder: Path, properties: Iterable[tuple[str, object]] = ()) -> dict[str, Callable]:
    import openvino as ov
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(str(folder), "CPU", **dict(properties))

    def generate(token_ids: np.ndarray, count: int) -> None:
        settings = genai.GenerationConfig()
        settings.max_new_tokens, settings.ignore_eos = count, True
        pipeline.generate(ov.Tensor(token_ids.astype(np.int64)), settings)

    return workloads(generate)


def start_torch(checkpoint: Path, precision: str) -> dict[str, Callable]:
    return workloads(eager(load_torch(checkpoint, precision)))


def start_compiled(checkpoint: Path, precision: str) -> dict[str, Callable]:
    return workloads(compiled(load_torch(checkpoint, precision)))


def start_onnx(folder: Path) -> dict[str, Callable]:
    import onnxruntime_genai as genai

    model = genai.Model(str(folder))

    def generate(token_ids: np.ndarray, count: int) -> None:
        settings = genai.GeneratorParams(model)
        length = token_ids.shape[1] + count
        settings.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = genai.Generator(model, settings)
        generator.append_tokens(token_ids[0].tolist())
        for _ in range(count):
            generator.generate_next_token()

    return workloads(generate)


def load_torch(checkpoint: Path, precision: str, attention: str = "sdpa"):
    """The transformers model of a folder, at "FP32" or "BF16". attention: transformers' name of its implementation."""
    import torch
    from transformers import AutoModelForCausalLM

    options = {"dtype": getattr(torch, TORCH_TYPES[precision]), "attn_implementation": attention}
    return AutoModelForCausalLM.from_pretrained(checkpoint, **options).eval()


def eager(model) -> Generate:
    """Greedy decoding with a transformers model, whose cache grows."""
    return lambda token_ids, count: list(greedy_tokens(model, token_ids, count))


def greedy_tokens(model, token_ids: np.ndarray, count: int) -> Iterator[int]:
    """The tokens that `eager` generates, each as soon as it is known."""
    import torch

    ids, past = torch.from_numpy(token_ids), None
    for _ in range(count):
        with torch.inference_mode():
            output = model(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)  # [1, 1]
        yield int(ids)


def compiled(model) -> Generate:
    """Greedy decoding with a transformers model under torch.compile, whose cache has a fixed length."""
    import torch
    from transformers import StaticCache

    step = torch.compile(model, dynamic=False)
    cache = StaticCache(model.config, max_cache_len=PREFILL_TOKENS + DECODE_TOKENS)

    def generate(token_ids: np.ndarray, count: int) -> list[int]:
        cache.reset()
        ids, begin, tokens = torch.from_numpy(token_ids), 0, []
        with torch.no_grad():
            for _ in range(count):
                positions = torch.arange(begin, begin + ids.shape[1])[None]  # [1, new tokens]
                output = step(ids, past_key_values=cache, use_cache=True, position_ids=positions, logits_to_keep=1)
                begin, ids = begin + ids.shape[1], output.logits[:, -1:].argmax(-1)  # [1, 1]
                tokens.append(int(ids))
        return tokens

    return generate


def workloads(generate: Generate) -> dict[str, Callable]:
    """The two workloads of a runtime."""
    rng = np.random.default_rng(0)

    def call(prompt: int, count: int) -> None:
        generate(rng.integers(FIRST_ID, END_ID, (1, prompt)), count)

    return {FIRST: partial(call, PREFILL_TOKENS, 1), DECODE: partial(call, DECODE_PROMPT_TOKENS, DECODE_TOKENS)}
