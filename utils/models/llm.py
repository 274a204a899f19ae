"""Language models: checkpoint to OpenVINO IR, decoding token by token, perplexity.

    GGUF file           -- to_transformers -->  transformers folder
    transformers folder -- to_ir ----------->   FP16 IR with tokenizers, as `openvino_genai` opens it
    FP16 IR             -- compress -------->   INT8 or INT4 IR

`transformers_folder` and `ir_folder` run the steps that are needed, each in a process of its own, and cache them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils import preflight
from utils.convert import cached

if TYPE_CHECKING:
    import openvino as ov

MODEL_XML = "openvino_model.xml"
CONTROL_TOKEN = 3  # GGUF's token type for <|im_start|> and its like
SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # transformers: GGUF
COMPRESSIONS = {
    "INT8": {"mode": "INT8_ASYM"},
    "INT4": {"mode": "INT4_ASYM"},
    "INT4 symmetric": {"mode": "INT4_SYM"},
    "INT4 scale estimation": {"mode": "INT4_ASYM", "scale_estimation": True},
    "INT4 GPTQ": {"mode": "INT4_ASYM", "gptq": True},
    "INT4 AWQ": {"mode": "INT4_ASYM", "awq": True},
}
TEXT = Path(__file__).parent / "text"  # calibration.txt: openings of books; evaluation.txt: a page of another one
# For parity: by default the CPU may compute in bf16 and keeps its cache in f16.
FP32_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def transformers_folder(name: str, checkpoint: Path) -> Path:
    """The transformers folder of a checkpoint: itself, or made from a GGUF file once and cached under `name`."""
    if checkpoint.suffix != ".gguf":
        return checkpoint
    return made(f"{name}-transformers", checkpoint, {}, to_transformers, checkpoint)


def ir_folder(name: str, checkpoint: Path, precision: str = "FP16", *, group_size: int = 64, ram_gb: float = 0) -> Path:
    """The IR folder of a transformers folder at FP16 or one of COMPRESSIONS, made once and cached under `name`.

    group_size: of the INT4 weights; ram_gb: what the export takes. Raises ValueError for another precision,
    preflight.NotEnough where memory or disk will not do.
    """
    if precision == "FP16":
        return made(f"{name}-fp16", checkpoint, {}, to_ir, checkpoint, ram_gb=ram_gb)
    if precision not in COMPRESSIONS:
        raise ValueError(f"There is no precision {precision!r}. Choose one of: FP16, {', '.join(COMPRESSIONS)}.")
    base = ir_folder(name, checkpoint, ram_gb=ram_gb)
    options = COMPRESSIONS[precision] | {"group_size": group_size}
    return made(f"{name}-{precision.lower().replace(' ', '-')}", base, options, compress, base, options, ram_gb=ram_gb)


def made(name: str, checkpoint: Path, arguments: dict, step, *args, ram_gb: float = 0, **versions) -> Path:
    """The folder that `step(*args, folder)` fills, in a process of its own unless an earlier run did (convert.cached).

    Its memory goes back when the process ends. Raises preflight.NotEnough where memory (`ram_gb`) or disk will not do.
    """

    def build(folder: Path) -> None:
        print(f"Making {name} ...", file=sys.stderr, flush=True)
        preflight.check(ram_gb=ram_gb, disk_gb=ram_gb / 2, what=f"Making {name}")
        preflight.in_child(step, *args, folder, what=f"Making {name}", ram_gb=ram_gb)

    return cached(name, build, checkpoint=checkpoint, arguments=arguments, code=step, **versions)


def to_transformers(gguf: Path, folder: Path) -> None:
    """Write a Llama-type GGUF file as a transformers folder: FP16 safetensors, configuration, tokenizer.

    transformers reads the weights exactly (they are 4-bit numbers times FP16 scales), but builds another
    tokenizer than the file describes, so the byte-level BPE is made here from the file's own vocabulary
    and merges (GGUF specification, keys tokenizer.ggml.*).
    """
    import torch
    from gguf import GGUFReader
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields

    def read(key: str):
        return fields[f"tokenizer.{key}"].contents()

    tokens, merges = read("ggml.tokens"), [tuple(merge.split(" ")) for merge in read("ggml.merges")]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    split_digits = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split_digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    special = {f"{name}_token_id": read(f"ggml.{key}_token_id") for name, key in SPECIAL_TOKENS.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        additional_special_tokens=[
            t for t, kind in zip(tokens, read("ggml.token_type"), strict=True) if kind == CONTROL_TOKEN
        ],
        **{key.removesuffix("_id"): tokens[number] for key, number in special.items()},
    )
    tokenizer.chat_template = read("chat_template")
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float16)
    model.generation_config.update(**special)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def to_ir(checkpoint: Path, folder: Path) -> None:
    """Export a transformers folder with optimum-intel: FP16 weights, stateful, with tokenizer IRs."""
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    main_export(
        str(checkpoint),
        folder,
        task="text-generation-with-past",
        ov_config=OVConfig(dtype="fp16"),
        convert_tokenizer=True,
        local_files_only=True,
    )


def compress(ir: Path, options: dict, folder: Path) -> None:
    """Compress the weights of the IR in folder `ir` with NNCF; all other files come along.

    options: `mode` (INT8_ASYM, INT4_ASYM, INT4_SYM), `group_size` (for INT4), and for a method that looks at
    activations on the calibration text `scale_estimation`, `gptq` or `awq`. Embeddings and output layer stay
    at 8 bits in the INT4 modes (NNCF's default).
    """
    import nncf
    import openvino as ov

    mode = options["mode"]
    arguments = {key: value for key, value in options.items() if key not in ("mode", "group_size")}
    if mode.startswith("INT4"):
        if arguments:  # a method, so it needs data
            arguments["dataset"] = nncf.Dataset(_calibration_samples(ir))
        arguments["group_size"] = options["group_size"]
    model = ov.Core().read_model(ir / MODEL_XML)
    copy_companions(ir, folder)
    ov.save_model(nncf.compress_weights(model, mode=nncf.CompressWeightsMode[mode], **arguments), folder / MODEL_XML)


def _calibration_samples(ir: Path, length: int = 128) -> list[dict[str, np.ndarray]]:
    ids = tokenize(ir, "calibration")
    return [model_inputs(ids[:, i : i + length]) for i in range(0, ids.shape[1] - length + 1, length)]


def copy_companions(source: Path, folder: Path) -> None:
    """Copy tokenizers and configuration, all but the model itself, so that the new folder is complete."""
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
    """A compiled model and its KV cache, which lives inside the model as state."""

    def __init__(self, model: ov.Model | Path, device: str = "CPU", **properties: str) -> None:
        import openvino as ov

        self.request = ov.Core().compile_model(model, device, properties).create_infer_request()
        self.past = 0

    def prefill(self, token_ids: np.ndarray) -> np.ndarray:
        """Empty the cache and read a prompt [batch, tokens]; returns the first output."""
        self.request.reset_state()
        self.past = 0
        return self.extend(token_ids)

    def extend(self, token_ids: np.ndarray) -> np.ndarray:
        """Read further tokens [batch, tokens]; returns the first output: logits, or token ids (SelectGreedy).

        The array is a view of the model's memory: copy what must outlive the next call.
        """
        self.request.infer(model_inputs(token_ids, self.past))
        self.past += token_ids.shape[1]
        return self.request.get_output_tensor(0).data

    def stream(self, token_ids: np.ndarray, count: int) -> Iterator[np.ndarray]:
        """Greedy decoding: yields the `count` tokens [batch] that follow the prompt, without a stop token."""
        output = self.prefill(token_ids)
        for i in range(count):
            last = output[:, -1]
            token = last.argmax(-1) if last.ndim == 2 else last.copy()
            yield token
            if i < count - 1:
                output = self.extend(token[:, None])

    def generate(self, token_ids: np.ndarray, count: int) -> np.ndarray:
        """The tokens [batch, count] of `stream`."""
        return np.stack(list(self.stream(token_ids, count)), 1)


def tokenize(folder: Path, text: str) -> np.ndarray:
    """Token ids [1, tokens] of `TEXT/<text>.txt`, with the tokenizer of an IR or transformers folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return np.array([tokenizer((TEXT / f"{text}.txt").read_text(encoding="utf-8"))["input_ids"]])


def perplexity(logits_of: Callable[[np.ndarray], np.ndarray], token_ids: np.ndarray, window: int = 512) -> float:
    """exp of the mean negative log-likelihood (nats) of each next token, in windows read from an empty cache.

    logits_of: token ids [1, n] -> logits [1, n, vocabulary]; token_ids: [1, tokens].
    """
    losses = []
    for start in range(0, token_ids.shape[1] - 1, window):
        ids = token_ids[:, start : start + window]
        logits = logits_of(ids)[0, :-1].astype(np.float32)
        logits = logits - logits.max(-1, keepdims=True)
        log_sums = np.log(np.exp(logits).sum(-1, dtype=np.float64))
        losses.append(log_sums - logits[np.arange(len(logits)), ids[0, 1:]])
    return float(np.exp(np.concatenate(losses).mean()))
