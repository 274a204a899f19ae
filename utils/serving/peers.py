"""What servers are compared with: other servers, started as a user starts them, and PyTorch without a server.

llama.cpp's `llama-server` is looked for in LLAMA_SERVER and on PATH, because it is no Python package. `transformers
serve` is part of transformers.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from utils import bench, preflight
from utils.models import llm_speed
from utils.serving.load import Model, Reply
from utils.serving.process import answers, terminate

_LOADED: dict[str, object] = {}  # the model and the tokenizer, in the process of `torch_eager`


def find_llama() -> str | None:
    """The llama-server of this machine, or None. Raises ValueError where LLAMA_SERVER names no program."""
    named = os.environ.get("LLAMA_SERVER")
    if named and not shutil.which(named):
        raise ValueError(f"LLAMA_SERVER={named} is no program. Give the path of llama-server, or unset it.")
    return shutil.which(named or "llama-server")


@contextmanager
def llama_server(program: str, gguf: Path, slots: int, context: int = 512) -> Iterator[str]:
    """llama.cpp's server with continuous batching (its default); slots: of `context` tokens each; yields its URL."""
    size = ["--parallel", str(slots), "--ctx-size", str(slots * context), "--threads", str(bench.machine()["cores"])]
    quiet = ["--no-webui", "--offline"]
    with _running([program, "--model", str(gguf), *size, *quiet], "/health") as url:
        yield url


@contextmanager
def transformers_serve(folder: Path) -> Iterator[str]:
    """The server of transformers with continuous batching, on the CPU, at its faster precision; yields its URL."""
    dtype = {"FP32": "float32", "BF16": "bfloat16"}[bench.torch_precision()]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    options = ["--continuous-batching", "--attn-implementation", "sdpa", "--device", "cpu", "--dtype", dtype]
    with _running([*command, *options], "/health", HF_HUB_OFFLINE="1") as url:
        yield url


@contextmanager
def torch_eager(folder: Path, precision: str) -> Iterator[Model]:
    """PyTorch eager on a transformers folder, without a server and in a process of its own.

    It yields what `load.measure` takes in place of a server, for one client.
    """
    with tempfile.TemporaryFile() as log:
        with preflight.Child(f"PyTorch at {precision}", log=log) as child:
            child.call(_load, folder, precision)
            yield partial(child.call, _answer)


def _load(folder: Path, precision: str) -> None:
    from transformers import AutoTokenizer

    _LOADED["model"] = llm_speed.load_torch(folder, precision)
    _LOADED["tokenizer"] = AutoTokenizer.from_pretrained(folder)


def _answer(messages: list[dict], answer: int) -> Reply:
    tokenizer, begin = _LOADED["tokenizer"], time.perf_counter()
    kind = {"return_tensors": "pt", "return_dict": True}
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **kind)["input_ids"].numpy()
    tokens = llm_speed.greedy_tokens(_LOADED["model"], prompt, answer)
    tokenizer.decode([next(tokens)])
    first = time.perf_counter() - begin
    return first, prompt.shape[1], 1 + len(list(tokens))


@contextmanager
def _running(command: list[str], health: str, timeout: float = 120, **environment: str) -> Iterator[str]:
    """Start a server on a free port, wait until its path `health` answers, and end it with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
        try:
            deadline = time.monotonic() + timeout
            while not answers(url + health):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(max(0, log.seek(0, os.SEEK_END) - 1000))
                    tail = log.read().decode(errors="replace")
                    raise RuntimeError(f"{Path(command[0]).name} did not come up. Its log ends:\n{tail}")
                time.sleep(0.1)
            yield url
        finally:
            terminate(process, 10)
