"""The real embedder: its vectors are PyTorch's, its pooling matters, and it serves many threads."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from notebooks.rag_serving import convert
from notebooks.rag_serving.measuring.retrieval import TorchEmbedder
from notebooks.rag_serving.pipeline import Embedder

TEXTS = ["The grapes of this wine grow in Italy.", "A ship sails over the sea.", "x " * 600]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder(convert.prepare_embedder("tiny", "FP32"), INFERENCE_PRECISION_HINT="f32")


def test_vectors_are_those_of_pytorch(embedder):
    reference = TorchEmbedder(convert.checkpoint_folder(), embedder)
    assert np.abs(embedder.documents(TEXTS) - reference.documents(TEXTS)).max() < 1e-4
    assert np.abs(embedder.question(TEXTS[0]) - reference.question(TEXTS[0])).max() < 1e-4
    wrong = Embedder(convert.prepare_embedder("tiny", "FP32"), pooling="CLS", INFERENCE_PRECISION_HINT="f32")
    assert np.abs(wrong.question(TEXTS[0]) - reference.question(TEXTS[0])).max() > 0.01
    assert wrong.identity != embedder.identity


def test_int8_is_near_and_small(embedder):
    folder = convert.prepare_embedder("tiny", "INT8")
    assert (folder / "openvino_model.bin").stat().st_size < 30e6
    small = Embedder(folder)
    assert (small.documents(TEXTS) * embedder.documents(TEXTS)).sum(1).min() > 0.98
    assert small.identity != embedder.identity


def test_threads_wait_for_each_other(embedder):
    expected = embedder.documents(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(lambda _: embedder.documents(TEXTS), range(8)):
            assert np.allclose(vectors, expected, atol=1e-5)


def test_words_are_counted_as_the_model_reads_them(embedder):
    counts = embedder.count_tokens(["wine", "(numpy.linalg.solve)", "wine"])
    assert counts[0] == counts[2] == 1 and counts[1] >= 7


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no embedding model"):
        Embedder(tmp_path)
    assert json.loads((convert.prepare_embedder() / "embedder.json").read_text(encoding="utf-8"))["pooling"] == "MEAN"


def test_unknown_names_are_errors():
    for names in (("huge", "INT8"), ("tiny", "INT2")):
        with pytest.raises(ValueError, match="Models: tiny, released; precisions: FP32, INT8, INT4"):
            convert.prepare_embedder(*names)
