"""From checkpoints to OpenVINO: the embedding model and the reranker, and the language model by `utils.models.llm`.

transformers folder -- to_ir ------------> FP32 IR with tokenizer, embedder.json and token_weights.npy
transformers folder -- cross_encoder_ir -> FP32 IR with tokenizer
FP32 IR ------------- compress ----------> INT8 or INT4 weights
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from notebooks.rag_serving import data
from utils import weights
from utils.convert import cached_in_child
from utils.files import sha256
from utils.models import llm, lora
from utils.models.llm import MODEL_XML
from utils.paths import notebook_dir

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Values of MODEL. embedder, reranker, llm: in checkpoints.toml (the embedder reranks, too, where it is the reranker);
# settings: what the pipeline has to know about the embedder; ram_gb: memory for the largest of the conversions.
MODELS = {
    "tiny": {
        "embedder": "minilm",
        "reranker": "minilm",
        "llm": "smollm2",
        "settings": {"name": "all-MiniLM-L6-v2", "pooling": "MEAN", "max_tokens": 256, "dimensions": 384},
        "ram_gb": 4,
    },
    "released": {
        "embedder": "qwen3_embedding_0_6b",
        "reranker": "bge_reranker_base",
        "llm": "qwen2_5_1_5b",
        "settings": {
            "name": "Qwen3-Embedding-0.6B",
            "pooling": "LAST_TOKEN",
            "max_tokens": 512,
            "dimensions": 1024,
            "query_instruction": "Instruct: Given a question, retrieve passages that answer it\nQuery:",
        },
        "ram_gb": 12,
    },
}
TINY = notebook_dir(__package__) / "tiny"  # what `training` wrote
READING, RANKING = TINY / "reading.safetensors", TINY / "ranking.safetensors"
WORDS = 50  # of a passage in which tokens are counted
PRECISIONS = {  # of the embedder and the reranker: arguments of nncf.compress_weights
    "FP32": {},
    "INT8": {"mode": "INT8_ASYM"},
    "INT4": {"mode": "INT4_ASYM", "group_size": 64},
}


def checkpoint_folder(model: str = "tiny") -> Path:
    """The transformers folder of the embedding model."""
    return weights.fetch(MODELS[model]["embedder"])


def prepare(model: str = "tiny", precision: str = "INT8") -> tuple[Path, Path]:
    """The IR folders of the embedder and of the language model.

    precision: of both; the language model has FP16 in place of FP32. Raises ValueError for names that are not known,
    preflight.NotEnough where memory or disk is too small.
    """
    embedder = prepare_embedder(model, precision)
    return embedder, prepare_llm(model, "FP16" if precision == "FP32" else precision)


def prepare_llm(model: str = "tiny", precision: str = "INT8") -> Path:
    """The IR folder of the language model at FP16, INT8 or INT4."""
    name, ram_gb = MODELS[model]["llm"], MODELS[model]["ram_gb"]
    return llm.ir_folder(
        f"{name}-reading" if model == "tiny" else name, llm_checkpoint(model), precision, ram_gb=ram_gb
    )


def llm_checkpoint(model: str = "tiny") -> Path:
    """The transformers folder of the language model; the tiny one has the reading adapter in its weights."""
    plain = plain_llm(model)
    if model != "tiny":
        return plain
    arguments = {"adapter": sha256(READING)}
    name = f"{MODELS[model]['llm']}-reading-transformers"
    return cached_in_child(name, lora.merge, plain, READING, checkpoint=plain, arguments=arguments)


def plain_llm(model: str = "tiny") -> Path:
    """The transformers folder of the language model as its authors made it."""
    name = MODELS[model]["llm"]
    return llm.transformers_folder(name, weights.fetch(name))


def prepare_embedder(model: str = "tiny", precision: str = "INT8") -> Path:
    """The IR folder of the embedder, at one of PRECISIONS."""
    _check(model, precision)
    settings, name = MODELS[model]["settings"], MODELS[model]["embedder"]
    checkpoint, ram_gb = checkpoint_folder(model), MODELS[model]["ram_gb"]
    base = cached_in_child(
        f"{name}-fp32", to_ir, checkpoint, settings, checkpoint=checkpoint, arguments=settings, ram_gb=ram_gb
    )
    return _compressed(name, base, precision, ram_gb)


def prepare_reranker(model: str = "tiny", precision: str = "INT8") -> Path:
    """The folder of the reranker, at one of PRECISIONS: of an embedding model, or of a cross-encoder."""
    _check(model, precision)
    name, ram_gb = MODELS[model]["reranker"], MODELS[model]["ram_gb"]
    if name == MODELS[model]["embedder"]:
        return prepare_embedder(model, precision)
    return prepare_cross_encoder(name, weights.fetch(name), precision, ram_gb)


def prepare_ranking(precision: str = "INT8") -> Path:
    """The IR folder of the cross-encoder that was trained from the tiny embedding model."""
    return prepare_cross_encoder(f"{MODELS['tiny']['embedder']}-ranking", ranking_checkpoint(), precision)


def ranking_checkpoint() -> Path:
    """The transformers folder of that cross-encoder."""
    plain, arguments = checkpoint_folder(), {"adapter": sha256(RANKING)}
    name = f"{MODELS['tiny']['embedder']}-ranking-transformers"
    return cached_in_child(name, write_cross_encoder, plain, RANKING, checkpoint=plain, arguments=arguments)


def prepare_cross_encoder(name: str, checkpoint: Path, precision: str, ram_gb: float = 0) -> Path:
    """The IR folder of a cross-encoder, a transformers folder of a sequence classifier with one output."""
    base = cached_in_child(f"{name}-fp32", cross_encoder_ir, checkpoint, checkpoint=checkpoint, ram_gb=ram_gb)
    return _compressed(name, base, precision, ram_gb)


def _check(model: str, precision: str) -> None:
    if model not in MODELS or precision not in PRECISIONS:
        known = f"Models: {', '.join(MODELS)}; precisions: {', '.join(PRECISIONS)}"
        raise ValueError(f"There is no {precision} of {model!r}. {known}.")


def _compressed(name: str, base: Path, precision: str, ram_gb: float) -> Path:
    """The folder of an IR with the weights of a precision."""
    if precision == "FP32":
        return base
    options = PRECISIONS[precision]
    made = {"checkpoint": base, "arguments": options, "ram_gb": ram_gb}
    return cached_in_child(f"{name}-{precision.lower()}", compress, base, options, **made)


def to_ir(checkpoint: Path, settings: dict, folder: Path) -> None:
    """Export a transformers folder: FP32 weights, the token vectors as output, with the IR of the tokenizer."""
    _export(checkpoint, "feature-extraction", folder)
    (folder / "embedder.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    np.save(folder / "token_weights.npy", token_weights(checkpoint))


def token_weights(checkpoint: Path) -> np.ndarray:
    """How much each token of a question counts when passages are reranked, [vocabulary].

    It is the inverse document frequency (as in BM25) in passages of scipy's documentation, and 0 for special tokens.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    texts = [document.text.split() for document in data.scipy_documents()]
    passages = [" ".join(words[begin : begin + WORDS]) for words in texts for begin in range(0, len(words), WORDS)]
    found = np.zeros(len(tokenizer))
    for ids in tokenizer(passages, add_special_tokens=False)["input_ids"]:
        found[list(set(ids))] += 1
    weights = np.log(1 + (len(passages) - found + 0.5) / (found + 0.5))
    weights[tokenizer.all_special_ids] = 0
    return weights.astype(np.float32)


def cross_encoder() -> PreTrainedModel:
    """The embedding model with a new output for one score, in FP32: what a cross-encoder begins with."""
    import torch
    from transformers import AutoModelForSequenceClassification

    checkpoint = checkpoint_folder()
    return AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=1, dtype=torch.float32)


def write_cross_encoder(checkpoint: Path, adapter: Path, folder: Path) -> None:
    """Write the transformers folder of a cross-encoder: the embedding model with an adapter in its weights."""
    from transformers import AutoTokenizer

    with TemporaryDirectory() as scratch:
        cross_encoder().save_pretrained(scratch)
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(scratch)
        lora.merge(Path(scratch), adapter, folder)


def cross_encoder_ir(checkpoint: Path, folder: Path) -> None:
    """Export a transformers folder: FP32 weights, one score for a question and a passage as output."""
    _export(checkpoint, "text-classification", folder)


def _export(checkpoint: Path, task: str, folder: Path) -> None:
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    main_export(
        str(checkpoint),
        folder,
        task=task,
        ov_config=OVConfig(dtype="fp32"),
        library_name="transformers",
        convert_tokenizer=True,
        local_files_only=True,
    )


def compress(ir: Path, options: dict, folder: Path) -> None:
    """Compress the weights of the IR in folder `ir` with NNCF, and copy all other files."""
    import nncf
    import openvino as ov

    arguments = options | {"mode": nncf.CompressWeightsMode[options["mode"]]}
    model = ov.Core().read_model(ir / MODEL_XML)
    llm.copy_companions(ir, folder)
    ov.save_model(nncf.compress_weights(model, **arguments), folder / MODEL_XML, compress_to_fp16=False)
