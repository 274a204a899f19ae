"""Checkpoint to the IR folder that is served: optimum-intel's export, then INT8 or INT4 weights by NNCF.

The steps are those of `utils.models.llm`. Other notebooks with the same checkpoint and options
share the cached folders.
"""

from __future__ import annotations

from pathlib import Path

from utils import weights
from utils.convert import cached_in_child
from utils.files import sha256
from utils.models import llm, llm_folders, lora
from utils.paths import notebook_dir

PRECISIONS = ("INT4", "INT8", "FP16")
ADAPTER = notebook_dir(__package__) / "tiny" / "thinking.safetensors"  # for `tiny`; `training` wrote it
TURN = "{{ '<|im_start|>assistant\n' }}"  # of SmolLM2's chat template: where an answer begins
THINKING_TURN = "{{ '<|im_start|>assistant\n<think>\n' }}"  # as DeepSeek-R1's template ends
NO_THOUGHTS = "\n</think>\n\n"  # after that, for an answer without thoughts

# Values of MODEL. checkpoint: in checkpoints.toml. int4: what INT4 means for it, one of llm.COMPRESSIONS.
# group_size: of its INT4 weights. ram_gb: memory that its export needs. thinks: whether its chat template ends with
# <think>, so that every answer begins with thoughts.
# The tiny model loses most by rounding to 4 bits, and scale estimation costs least on it.
MODELS = {
    "tiny": {
        "checkpoint": "smollm2",
        "int4": "INT4 scale estimation",
        "group_size": 64,
        "ram_gb": 3,
        "thinks": False,
    },
    "released": {
        "checkpoint": "deepseek_r1_distill_qwen_1_5b",
        "int4": "INT4",
        "group_size": 128,
        "ram_gb": 9,
        "thinks": True,
    },
    "released-7b": {
        "checkpoint": "deepseek_r1_distill_qwen_7b",
        "int4": "INT4",
        "group_size": 128,
        "ram_gb": 36,
        "thinks": True,
    },
}


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of a model, or of the checkpoint at CHECKPOINT; a GGUF file is converted once."""
    return llm_folders.checkpoint_folder(MODELS, model)


def prepare(model: str = "tiny", precision: str = "INT4") -> Path:
    """The IR folder of a model at one of PRECISIONS, with tokenizers. It is converted once and cached.

    Raises ValueError for an unknown name, preflight.NotEnough where memory or disk is too small.
    """
    return llm_folders.prepare(MODELS, model, precision, PRECISIONS)


def thinking_checkpoint() -> Path:
    """The transformers folder of the tiny model with the thinking adapter in its weights."""
    checkpoint = checkpoint_of_tiny()
    arguments = {"adapter": sha256(ADAPTER)}
    name = f"{MODELS['tiny']['checkpoint']}-thinking-transformers"
    return cached_in_child(name, write_thinking, checkpoint, ADAPTER, checkpoint=checkpoint, arguments=arguments)


def prepare_thinking(precision: str = "INT8") -> Path:
    """The IR folder of the tiny model that thinks, at one of PRECISIONS."""
    settings = MODELS["tiny"]
    name = settings["int4"] if precision == "INT4" else precision
    folder = thinking_checkpoint()
    return llm.ir_folder(f"{settings['checkpoint']}-thinking", folder, name, group_size=settings["group_size"])


def checkpoint_of_tiny() -> Path:
    """The transformers folder of the tiny model, whatever CHECKPOINT is: the adapter belongs to it."""
    name = MODELS["tiny"]["checkpoint"]
    return llm.transformers_folder(name, weights.fetch(name))


def write_thinking(checkpoint: Path, adapter: Path, folder: Path) -> None:
    """Write a transformers folder with an adapter in its weights, and a chat template that begins the thoughts."""
    lora.merge(checkpoint, adapter, folder)
    file = folder / "chat_template.jinja"
    file.write_text(thinking_template(file.read_text(encoding="utf-8")), encoding="utf-8")


def thinking_template(template: str) -> str:
    """A chat template of SmolLM2 whose turns of the model begin with <think>."""
    if TURN not in template:
        raise ValueError(f"The chat template has no {TURN!r}: it is not SmolLM2's.")
    return template.replace(TURN, THINKING_TURN)
