"""OpenVINO and other runtimes on the same model: PyTorch, ONNX Runtime GenAI, and llama.cpp where it is installed."""

from __future__ import annotations

import atexit
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil

from notebooks.llm_methods import convert
from notebooks.llm_methods.measuring import weights
from notebooks.llm_methods.measuring.store import Rows
from notebooks.llm_methods.pipeline import named
from utils import bench
from utils.convert import cached_in_child
from utils.models import llm_speed
from utils.serving.peers import find_llama, llama_server
from utils.weights import resolve

LLAMA, KINDS = "llama.cpp", ("Q4_0", "Q4_K_M", "Q8_0")
QUANTIZED = "model.gguf"
CONTEXT = 1024  # tokens of a request
OWN = ("FP16", "INT8 asymmetric", "INT4 asymmetric")  # OpenVINO's among them


def measure(model: str, rows: Rows) -> None:
    """Add rows of the kind "peers": speed, memory and size. llama.cpp's memory is that of its server: unknown.

    OpenVINO's are measured here again, so that one machine measures all of them one after the other.
    """
    checkpoint, name = convert.checkpoint_folder(model), convert.MODELS[model]["checkpoint"]
    own = {method.split()[0]: convert.prepare(model, named(method).call, method) for method in OWN}
    settings = [llm_speed.genai_setting(precision, folder) for precision, folder in own.items()]
    settings += llm_speed.torch_settings(checkpoint)
    settings.append(llm_speed.onnx_setting(llm_speed.onnx_folder(name, checkpoint)))
    settings += llama_settings(name, resolve(name))
    named_settings = {f"{setting.runtime} {setting.precision}": setting for setting in settings}
    for row in rows.of("peers"):
        if row["name"] not in named_settings:  # another machine's, which has what this one lacks
            rows.rows.pop(("peers", row["name"]))
    for row_name, setting in named_settings.items():
        busy = {"busy_percent": round(psutil.cpu_percent(interval=1.0))}
        fields = busy | weights.timed(setting) | {"model_mb": round(setting.model_mb, 1)}
        if setting.runtime == LLAMA:
            del fields["running_mb"]
        rows.add("peers", row_name, fields)


def left_out(rows: Rows) -> dict[str, str]:
    """A note on the peers that were not measured, and why."""
    if any(row["name"].startswith(LLAMA) for row in rows.of("peers")):
        return {}
    return {"left out": f"{LLAMA} at {', '.join(KINDS)}: no llama-server with its llama-quantize on this machine"}


def llama_settings(name: str, gguf: Path) -> list[bench.Setting]:
    """llama.cpp's server on a GGUF file, quantized to each of KINDS.

    Empty without `llama-server` (in LLAMA_SERVER or on PATH) and `llama-quantize` in the same folder, and for a model
    that is no GGUF file. name: of the checkpoint in checkpoints.toml.
    """
    program = find_llama()
    quantizer = program and shutil.which("llama-quantize", path=str(Path(program).parent))
    settings = []
    for kind in KINDS if quantizer and gguf.suffix == ".gguf" else ():
        what = {"checkpoint": gguf, "arguments": {"kind": kind}}
        file = cached_in_child(f"{name}-{kind.lower()}", quantize, quantizer, gguf, kind, **what) / QUANTIZED
        settings.append(bench.Setting(LLAMA, kind, start_llama, (program, file), bench.size_mb(file)))
    return settings


def quantize(program: str, gguf: Path, kind: str, folder: Path) -> None:
    """Write a GGUF file at another precision with llama.cpp's own program, also of weights that have 4 bits already."""
    command = [program, "--allow-requantize", gguf, folder / QUANTIZED, kind]
    subprocess.run(command, check=True, capture_output=True)


def start_llama(program: str, gguf: Path) -> dict[str, Callable]:
    """llama.cpp's server, which ends with this process."""
    import httpx

    stack = ExitStack()
    url = stack.enter_context(llama_server(program, gguf, slots=1, context=CONTEXT))
    client = stack.enter_context(httpx.Client(base_url=url, timeout=60))
    atexit.register(stack.close)

    def generate(token_ids: np.ndarray, count: int) -> None:
        body = {"prompt": token_ids[0].tolist(), "n_predict": count, "temperature": 0, "ignore_eos": True}
        reply = client.post("/completion", json=body | {"cache_prompt": False})
        reply.raise_for_status()
        if (found := reply.json()["tokens_predicted"]) != count:
            raise RuntimeError(f"llama-server generated {found} tokens in place of {count}.")

    return llm_speed.workloads(generate)
