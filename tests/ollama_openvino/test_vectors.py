"""Vectors of a real model over /api/embed: all-MiniLM-L6-v2, which sentence-transformers describes by its files."""

import shutil

import numpy as np
import pytest
import torch

from notebooks.ollama_openvino import measuring
from utils import preflight
from utils.weights import resolve

TEXTS = ["The sky is blue.", "A fox jumps over a dog, which is lazy.", "blue"]


def export(checkpoint, folder) -> None:
    """In a child: the IR of a transformers folder with the tokenizer's, as `optimum-cli export openvino` makes it."""
    from optimum.exporters.openvino import main_export

    options = {"task": "feature-extraction", "library_name": "transformers", "convert_tokenizer": True}
    main_export(str(checkpoint), folder, local_files_only=True, **options)


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "minilm"
    preflight.in_child(export, resolve("minilm"), folder)
    return folder


def transformers_vectors(checkpoint) -> tuple[np.ndarray, np.ndarray]:
    """The normalised means of the tokens' vectors [texts, 384], and the normalised vectors of the first tokens."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), AutoModel.from_pretrained(checkpoint).eval()
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        tokens = model(**inputs).last_hidden_state  # [texts, tokens, 384]
    mask = inputs["attention_mask"][..., None]
    return tuple(
        torch.nn.functional.normalize(vectors).numpy()
        for vectors in ((tokens * mask).sum(1) / mask.sum(1), tokens[:, 0])
    )


def test_the_package_says_how_tokens_become_one_vector(minilm):
    means, first = transformers_vectors(resolve("minilm"))
    with_pooling = minilm.with_name("with-pooling")
    shutil.copytree(minilm, with_pooling)
    shutil.copytree(resolve("minilm") / "1_Pooling", with_pooling / "1_Pooling")
    with measuring.serving({"mean": with_pooling, "first": minilm}) as server:
        client = measuring.client(server.host)
        found = {name: np.array(client.embed(name, TEXTS).embeddings) for name in ("mean", "first")}
    assert np.abs(found["mean"] - means).max() < 0.01 and np.abs(found["first"] - first).max() < 0.01
    assert np.abs(found["mean"] - first).max() > 0.05
