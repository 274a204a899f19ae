"""The reranker: MaxSim of token vectors that are PyTorch's, a cross-encoder, and the order that follows."""

import numpy as np
import pytest

from notebooks.rag_serving import convert
from notebooks.rag_serving.measuring.retrieval import TorchEmbedder
from notebooks.rag_serving.pipeline import CrossEncoder, Embedder, LateInteraction, Retriever, TokenVectors
from notebooks.rag_serving.pipeline.reranker import (
    CANDIDATES,
    COSINE,
    MAX_TEXTS,
    maxsim,
    mean_cosine,
    open_reranker,
    reorder,
)
from notebooks.rag_serving.pipeline.store import Passage
from tests.rag_serving import fakes

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
TEXTS = [
    "The grapes of this wine grow in Italy, where it is warm.",
    "A ship.",
    "word " * 600,
    *(f"The number {number} has {number} tokens or more: " + "and more " * number for number in range(20, 0, -1)),
]


def passage(place: int) -> Passage:
    return Passage(f"d{place}", 0, 0, f"text {place}", 2 / (60 + place), 0.5, place, 2.0, place)


def test_maxsim_is_the_weighted_mean_of_the_largest_cosines():
    rng = np.random.default_rng(0)
    question, *passages = (rng.standard_normal((tokens, 8)) for tokens in (5, 1, 7, 3))
    weights = rng.uniform(1, 2, 5)
    largest = [[max(float(own @ token) for token in one) for own in question] for one in passages]
    expected = np.average(largest, axis=1, weights=weights)
    assert np.allclose(maxsim(question, passages, weights), expected)
    assert np.allclose(maxsim(question, passages[1:2], weights), expected[1:2])
    assert np.array_equal(maxsim(question, passages, np.zeros(5)), np.zeros(3))


def test_the_cosine_is_that_of_the_means():
    rng = np.random.default_rng(0)
    question, *passages = (rng.standard_normal((tokens, 8)) for tokens in (5, 1, 7, 3))
    asked, means = question.mean(0), [own.mean(0) for own in passages]
    expected = [own @ asked / np.linalg.norm(own) / np.linalg.norm(asked) for own in means]
    assert np.allclose(mean_cosine(question, passages), expected)


def test_a_text_with_the_words_of_the_question_comes_first():
    reranker = LateInteraction(fakes.token_vectors, fakes.token_weights)
    scores = reranker.scores("wine of Italy", ["a ship at sea", "this wine comes from Italy", "wine of Italy"])
    assert np.argsort(scores).tolist() == [0, 1, 2] and scores[2] == pytest.approx(1 + COSINE)
    assert reranker.scores("wine", []).shape == (0,)


def test_the_reranker_decides_and_equal_passages_stay():
    found = reorder([passage(place) for place in (1, 2, 3)], np.array([0.1, 0.9, 0.5]))
    assert [(own.source, own.rerank_score) for own in found] == [("d2", 0.9), ("d3", 0.5), ("d1", 0.1)]
    assert found[0].score == passage(2).score
    equal = reorder([passage(place) for place in (1, 2, 3)], np.zeros(3))
    assert [own.source for own in equal] == ["d1", "d2", "d3"]


def test_a_search_reranks_more_passages_than_it_returns(store):
    """The reranker sees all candidates, and what a search finds late can come early."""

    class Last:
        seen: list[str] = []

        def scores(self, question, texts):
            self.seen = list(texts)
            return np.arange(len(texts))

    reranker = Last()
    retriever = Retriever(store, fakes.Embedder(), tokens=20, overlap=4, reranker=reranker)
    for number in range(CANDIDATES + 4):
        retriever.ingest(f"d{number}", f"wine of Italy number{number}")
    plain = [own.source for own in retriever.search("wine of Italy", 50, rerank=False)]
    assert reranker.seen == [] and len(plain) == CANDIDATES + 4
    found = retriever.search("wine of Italy", 3)
    assert [text.split("\n")[0] for text in reranker.seen] == plain[:CANDIDATES]
    assert [own.source for own in found] == plain[CANDIDATES - 3 : CANDIDATES][::-1]
    assert len(retriever.search("wine of Italy", 22)) == 22


@pytest.fixture(scope="module")
def minilm():
    return convert.prepare_embedder("tiny", "FP32")


def test_token_vectors_are_those_of_pytorch(minilm):
    ours, reference = TokenVectors(minilm, **F32), TorchEmbedder(convert.checkpoint_folder(), Embedder(minilm, **F32))
    for text, own, expected in zip(TEXTS, ours(TEXTS), reference.token_vectors(TEXTS), strict=True):
        assert own.shape == expected.shape, text
        assert np.abs(own - expected).max() < 1e-4, text
    assert ours([]) == []


def test_rare_tokens_count_more_and_special_ones_nothing(minilm):
    weights = TokenVectors(minilm).weights("the hypergeometric of")  # [CLS], the, pieces of a word, of, [SEP]
    assert weights[0] == weights[-1] == 0 and 0 < weights[1] < 1 and 0 < weights[-2] < 1
    assert weights[2:-2].max() > 3


def test_int8_ranks_as_pytorch(minilm):
    question = "Which country do the wines come from?"
    reference = TorchEmbedder(convert.checkpoint_folder(), Embedder(minilm, **F32))
    weights = TokenVectors(minilm).weights
    expected = LateInteraction(reference.token_vectors, weights).scores(question, TEXTS)
    scores = open_reranker(convert.prepare_reranker()).scores(question, TEXTS)
    assert scores.argmax() == expected.argmax() == 0 and np.abs(scores - expected).max() < 0.05


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    """A transformers folder of a small cross-encoder with random weights, and its IR."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    checkpoint, ir = (tmp_path_factory.mktemp(name) for name in ("checkpoint", "ir"))
    tokenizer = AutoTokenizer.from_pretrained(convert.checkpoint_folder())
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(tokenizer), num_labels=1, initializer_range=0.5, **sizes)
    BertForSequenceClassification(config).eval().save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    convert.cross_encoder_ir(checkpoint, ir)
    return checkpoint, ir


def test_a_cross_encoder_scores_as_pytorch(cross_encoder):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    checkpoint, ir = cross_encoder
    texts, question = [TEXTS[1], *TEXTS[3:]], "Which country?"
    reranker = open_reranker(ir)
    assert isinstance(reranker, CrossEncoder)
    scores = CrossEncoder(ir, **F32).scores(question, texts)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    network = AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    with torch.inference_mode():
        logits = [network(**tokenizer(question, text, return_tensors="pt")).logits.item() for text in texts]
    expected = torch.sigmoid(torch.tensor(logits)).numpy()
    assert np.ptp(expected) > 0.01  # random weights tell the texts apart
    assert np.abs(scores - expected).max() < 1e-4
    assert np.abs(reranker.scores(question, texts) - expected).max() < 0.1


def test_a_cross_encoder_is_compressed(cross_encoder, tmp_path):
    """Random weights lose too much by it to compare scores."""
    convert.compress(cross_encoder[1], convert.PRECISIONS["INT8"], tmp_path)
    sizes = [(folder / "openvino_model.bin").stat().st_size for folder in (tmp_path, cross_encoder[1])]
    assert sizes[0] < 0.3 * sizes[1]
    scores = CrossEncoder(tmp_path).scores("Which country?", TEXTS[3:])
    assert len(set(scores.tolist())) > 5 and 0 < scores.min() and scores.max() < 1


def test_no_passages_get_no_scores_and_too_many_are_an_error(cross_encoder):
    reranker = CrossEncoder(cross_encoder[1])
    reranker.scores("Which country?", ["Italy"])
    assert reranker.scores("Which country?", []).shape == (0,)
    with pytest.raises(ValueError, match=f"There are {MAX_TEXTS + 1} passages. Rerank at most {MAX_TEXTS}"):
        reranker.scores("Which country?", ["Italy"] * (MAX_TEXTS + 1))


def test_a_cross_encoder_orders_a_search(store, cross_encoder):
    retriever = Retriever(store, fakes.Embedder(), tokens=20, overlap=4, reranker=CrossEncoder(cross_encoder[1]))
    for number in range(4):
        retriever.ingest(f"d{number}", f"wine {number} of Italy")
    scores = [own.rerank_score for own in retriever.search("wine of Italy", 4)]
    assert len(set(scores)) == 4 and scores == sorted(scores, reverse=True)


def test_a_folder_without_an_embedding_model_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no embedding model"):
        TokenVectors(tmp_path)
    for name in ("embedder.json", "openvino_model.bin"):
        (tmp_path / name).write_text('{"max_tokens": 8}', encoding="utf-8")
    with pytest.raises(ValueError, match="has no token_weights.npy, which a reranker needs"):
        TokenVectors(tmp_path)
