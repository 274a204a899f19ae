"""Language models: checkpoint to OpenVINO IR, decoding token by token, perplexity.

    GGUF file           -- gguf.to_transformers -->  transformers folder
    transformers folder -- to_ir ---------------->   FP16 IR with tokenizers, as `openvino_genai` opens it
    FP16 IR             -- compress ------------->   INT8 or INT4 IR

`transformers_folder` and `ir_folder` run each missing step in a child process and cache its result. Notebooks that pass
the same name and options share the folders.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils.convert import cached_in_child
from utils.models import gguf

if TYPE_CHECKING:
    import openvino as ov

MODEL_XML = "openvino_model.xml"
COMPRESSIONS = {
    "INT8": {"mode": "INT8_ASYM"},
    "INT4": {"mode": "INT4_ASYM"},
    "INT4 symmetric": {"mode": "INT4_SYM"},
    "INT4 scale estimation": {"mode": "INT4_ASYM", "scale_estimation": True},
    "INT4 GPTQ": {"mode": "INT4_ASYM", "gptq": True},
    "INT4 AWQ": {"mode": "INT4_ASYM", "awq": True},
}
TEXT = Path(__file__).parent / "text"  # calibration.txt: beginnings of books; evaluation.txt: a page of another book
# For parity: by default the CPU may compute in bf16, and it stores the KV cache in f16.
FP32_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def transformers_folder(name: str, checkpoint: Path) -> Path:
    """The transformers folder of a checkpoint: the checkpoint itself, or the conversion of a GGUF file.

    name: of the checkpoint in checkpoints.toml.
    """
    if checkpoint.suffix.lower() != ".gguf":
        return checkpoint
    return cached_in_child(f"{name}-transformers", gguf.to_transformers, checkpoint, checkpoint=checkpoint)


def ir_folder(name: str, checkpoint: Path, precision: str = "FP16", *, group_size: int = 64, ram_gb: float = 0) -> Path:
    """The IR folder of a transformers folder at FP16 or one of COMPRESSIONS.

    name: of the checkpoint in checkpoints.toml. group_size: of the INT4 weights. ram_gb: memory that the export needs.
    Raises ValueError for another precision, preflight.NotEnough where memory or disk is too small.
    """
    if precision == "FP16":
        return cached_in_child(f"{name}-fp16", to_ir, checkpoint, checkpoint=checkpoint, ram_gb=ram_gb)
    if precision not in COMPRESSIONS:
        raise ValueError(f"There is no precision {precision!r}. Choose one of: FP16, {', '.join(COMPRESSIONS)}.")
    base = ir_folder(name, checkpoint, ram_gb=ram_gb)
    options = COMPRESSIONS[precision] | {"group_size": group_size}
    name = f"{name}-{precision.lower().replace(' ', '-')}"
    return cached_in_child(name, compress, base, options, checkpoint=base, arguments=options, ram_gb=ram_gb)


def to_ir(checkpoint: Path, folder: Path, *, tokenizer: bool = True) -> None:
    """Export a transformers folder with optimum-intel: FP16 weights, stateful, with tokenizer IRs unless `tokenizer` is
    False.

    Raises ValueError for an architecture that it does not export.
    """
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    try:
        main_export(
            str(checkpoint),
            folder,
            task="text-generation-with-past",
            ov_config=OVConfig(dtype="fp16"),
            convert_tokenizer=tokenizer,
            local_files_only=True,
        )
    except ValueError as error:
        kind = json.loads((checkpoint / "config.json").read_text(encoding="utf-8")).get("model_type")
        raise ValueError(
            f"{checkpoint}: optimum-intel does not export the architecture {kind!r} ({error}). Take another one."
        ) from error


def compress(ir: Path, options: dict, folder: Path) -> None:
    """Compress the weights of the IR in folder `ir` with NNCF, and copy all other files.

    options: `mode` (INT8_ASYM, INT4_ASYM, INT4_SYM), `group_size` (for INT4), and `scale_estimation`, `gptq` or `awq`
    for a method that needs activations, which it gets from the calibration text. In the INT4 modes NNCF keeps the
    embeddings and the output layer at 8 bits.
    """
    import nncf
    import openvino as ov

    mode = options["mode"]
    arguments = {key: value for key, value in options.items() if key not in ("mode", "group_size")}
    if mode.startswith("INT4"):
        if arguments:  # these methods need activations
            arguments["dataset"] = nncf.Dataset(_calibration_samples(ir))
        arguments["group_size"] = options["group_size"]
    model = ov.Core().read_model(ir / MODEL_XML)
    copy_companions(ir, folder)
    ov.save_model(nncf.compress_weights(model, mode=nncf.CompressWeightsMode[mode], **arguments), folder / MODEL_XML)


def _calibration_samples(ir: Path, length: int = 128) -> list[dict[str, np.ndarray]]:
    ids = tokenize(ir, "calibration")  # [1, tokens]
    return [model_inputs(ids[:, i : i + length]) for i in range(0, ids.shape[1] - length + 1, length)]


def copy_companions(source: Path, folder: Path) -> None:
    """Copy tokenizers and configuration: all files but the model and the manifest of the conversion."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if (
            file.is_file()
            and not file.name.startswith(MODEL_XML.removesuffix(".xml") + ".")
            and file.name != "manifest.json"
        ):
            shutil.copy2(file, folder)


# --- running ---------------------------------------------------------------------------------------------------


def model_inputs(token_ids: np.ndarray, past: int = 0) -> dict[str, np.ndarray]:
    """The inputs of an exported language model for int token_ids [batch, tokens] after `past` cached tokens."""
    batch, tokens = token_ids.shape
    return {
        "input_ids": token_ids.astype(np.int64),
        "attention_mask": np.ones((batch, past + tokens), np.int64),
        "position_ids": np.arange(past, past + tokens)[None].repeat(batch, 0),
        "beam_idx": np.arange(batch, dtype=np.int32),
    }


class Session:
    """A compiled model with its KV cache, which the model holds as state."""

    def __init__(self, model: ov.Model | Path, device: str = "CPU", **properties: str) -> None:
        import openvino as ov

        self.request = ov.Core().compile_model(model, device, properties).create_infer_request()
        self.past = 0  # tokens in the cache

    def prefill(self, token_ids: np.ndarray) -> np.ndarray:
        """Empty the cache and run a prompt [batch, tokens]; returns the first output."""
        self.request.reset_state()
        self.past = 0
        return self.extend(token_ids)

    def extend(self, token_ids: np.ndarray) -> np.ndarray:
        """Run further tokens [batch, tokens]; returns the first output.

        It holds logits [batch, tokens, vocabulary], or token ids [batch, tokens] where the graph selects them. It is a
        view of the model's memory: copy it if you need it after the next call.
        """
        self.request.infer(model_inputs(token_ids, self.past))
        self.past += token_ids.shape[1]
        return self.request.get_output_tensor(0).data

    def stream(self, token_ids: np.ndarray, count: int) -> Iterator[np.ndarray]:
        """Greedy decoding: yield `count` tokens [batch] after the prompt, and ignore end-of-sequence tokens."""
        output = self.prefill(token_ids)
        for i in range(count):
            last = output[:, -1]  # [batch, vocabulary], or token ids [batch]
            token = last.argmax(-1) if last.ndim == 2 else last.copy()
            yield token
            if i < count - 1:
                output = self.extend(token[:, None])

    def generate(self, token_ids: np.ndarray, count: int) -> np.ndarray:
        """All tokens of `stream` as [batch, count]."""
        return np.stack(list(self.stream(token_ids, count)), 1)


def tokenize(folder: Path, text: str) -> np.ndarray:
    """Token ids [1, tokens] of `TEXT/<text>.txt`, with the tokenizer of an IR or transformers folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return np.array([tokenizer((TEXT / f"{text}.txt").read_text(encoding="utf-8"))["input_ids"]])


def perplexity(logits_of: Callable[[np.ndarray], np.ndarray], token_ids: np.ndarray, window: int = 512) -> float:
    """exp of the mean negative log-likelihood (nats) of each next token. Every window starts with an empty cache.

    logits_of: token ids [1, n] -> logits [1, n, vocabulary]; token_ids: [1, tokens]; window: tokens.
    """
    losses = []
    for start in range(0, token_ids.shape[1] - 1, window):
        ids = token_ids[:, start : start + window]  # [1, n]
        logits = logits_of(ids)[0, :-1].astype(np.float32)  # [n - 1, vocabulary]
        logits = logits - logits.max(-1, keepdims=True)
        log_sums = np.log(np.exp(logits).sum(-1, dtype=np.float64))
        losses.append(log_sums - logits[np.arange(len(logits)), ids[0, 1:]])
    return float(np.exp(np.concatenate(losses).mean()))
