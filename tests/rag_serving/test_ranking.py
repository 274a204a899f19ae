"""The cross-encoder's training: what it learns from, and the model that comes of it."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from notebooks.rag_serving import convert, data
from notebooks.rag_serving.data import Document, Find
from notebooks.rag_serving.pipeline import CrossEncoder, Embedder
from notebooks.rag_serving.pipeline.chunking import split
from notebooks.rag_serving.pipeline.retriever import OVERLAP, TOKENS
from notebooks.rag_serving.training import ranking
from notebooks.rag_serving.training.ranking import Candidates

ABOUT = {
    "fruit": "Apples and pears grow on trees, and cherries do, too.",
    "ships": "A ship has masts and sails.",
    "trains": "A train runs on rails.",
}


@pytest.fixture
def small(monkeypatch):
    """Three documents, of which two are asked for, and few passages that are not right."""
    documents = [Document(source, text) for source, text in ABOUT.items()]
    questions = [Find("Which fruit grows on a tree?", ("fruit",)), Find("What has sails?", ("ships", "trains"))]
    monkeypatch.setattr(data, "practice_corpus", lambda: (documents, questions))
    monkeypatch.setattr(ranking, "TEXTS", 3)
    return documents


def test_the_right_passages_are_those_of_the_sources_and_others_are_wrong(small, tmp_path, monkeypatch):
    found = ranking.candidates(tmp_path / "candidates.json")
    (own,) = found  # the other question has one wrong passage, and two are wanted
    assert own.question == "Which fruit grows on a tree?" and own.right == [f"fruit\n{ABOUT['fruit']}"]
    assert sorted(own.wrong) == [f"ships\n{ABOUT['ships']}", f"trains\n{ABOUT['trains']}"]
    monkeypatch.setattr(data, "practice_corpus", lambda: pytest.fail("what is in the file is read"))
    assert ranking.candidates(tmp_path / "candidates.json") == found


def test_documents_are_cut_as_the_pipeline_cuts_them():
    text = "\n".join(f"Line {number} of the text says that solve_{number}(x) is {number}." for number in range(200))
    cut = ranking.cut(convert.checkpoint_folder(), [Document("long", text)])
    chunks = split(text, Embedder(convert.prepare_embedder()).count_tokens, TOKENS, OVERLAP)
    assert len(cut) == ranking.PASSAGES < len(chunks)
    assert cut == [("long", f"long\n{chunk.text}") for chunk in chunks[: ranking.PASSAGES]]


def test_the_first_of_the_drawn_texts_is_right():
    found = [Candidates(f"q{i}", [f"right {i}"], [f"wrong {i} {k}" for k in range(9)]) for i in range(8)]
    drawn = ranking.draw(found, np.random.default_rng(0))
    assert len({question for question, _ in drawn}) == ranking.QUESTIONS
    for question, texts in drawn:
        assert len(set(texts)) == ranking.TEXTS
        assert [text.split()[:2] == ["right", question[1]] for text in texts] == [True] + [False] * (ranking.TEXTS - 1)


def test_the_share_counts_questions_whose_best_passage_is_right():
    found = [Candidates("a", ["aa"], ["b", "c"]), Candidates("b", ["c"], ["bb", "a"])]
    assert ranking.share_first(lambda pairs: torch.tensor([len(text) for _, text in pairs]), found) == 0.5


def test_no_package_of_the_examination_is_trained():
    assert not {name.partition(".")[0] for name in data.PRACTICE} & {name.partition(".")[0] for name in data.NUMPY}


def test_the_committed_adapter_fits_the_embedding_model():
    layers = 6 * 6 + 1  # query, key, value and three dense ones in each layer, and the one behind them
    with safe_open(convert.RANKING, framework="pt") as file:
        names = set(file.keys())
    assert len(names) == 2 * layers + 2 and "base_model.model.classifier.weight" in names
    assert convert.RANKING.stat().st_size < 3e6


def test_the_cross_encoder_scores_as_pytorch_does():
    question, texts = "Which fruit grows on a tree?", list(ABOUT.values())
    folder = convert.prepare_ranking("FP32")
    scores = CrossEncoder(folder, INFERENCE_PRECISION_HINT="f32").scores(question, texts)
    merged = convert.ranking_checkpoint()
    network, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(merged),
        AutoTokenizer.from_pretrained(merged),
    )
    with torch.inference_mode():
        logits = network(**tokenizer([question] * 3, texts, padding=True, return_tensors="pt")).logits[:, 0]
    assert np.abs(scores - logits.sigmoid().numpy()).max() < 1e-4
    assert scores.argmax() == 0
