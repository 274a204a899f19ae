"""The metrics on made-up ranks, controls that must fail, and kept vectors."""

import numpy as np
import pytest

from notebooks.rag_serving.data import Ask, Document, Find
from notebooks.rag_serving.measuring import answers, retrieval
from notebooks.rag_serving.measuring.retrieval import Found
from notebooks.rag_serving.pipeline import LateInteraction, Passage
from tests.rag_serving import fakes
from utils import compare

DOCUMENTS = [
    Document(f"d{number}", f"The planet{number} has moon{number} and ring{number}. " * 3) for number in range(12)
]
QUESTIONS = [Find(f"Which moon{number} has planet{number}?", (f"d{number}",)) for number in range(12)]


def test_recall_and_mrr():
    found = Found((1, 2, None, 10))
    assert (found.recall(1), found.recall(5), found.recall(10)) == (0.25, 0.5, 0.75)
    assert found.mrr == pytest.approx((1 + 1 / 2 + 1 / 10) / 4)


def test_the_rank_is_that_of_the_first_right_passage():
    passages = [Passage(source, 0, 0, "", 0, None, None, None, None) for source in ("a", "b", "c", "b")]
    assert retrieval.rank(passages, ("b", "c")) == 2 and retrieval.rank(passages, ("x",)) is None


def test_each_search_finds_and_each_control_does_not(url):
    reranker = LateInteraction(fakes.token_vectors, fakes.token_weights)
    retriever = retrieval.fill(url, fakes.Embedder(), DOCUMENTS, tokens=20, overlap=4, reranker=reranker)
    vectors = retrieval.question_vectors(retriever.embedder, QUESTIONS)
    found = retrieval.methods(retriever, QUESTIONS, vectors)
    assert list(found) == ["reranked documents", "documents", "reranked", "hybrid", "dense", "words"]
    assert all(own.recall(1) == 1 for mode, own in found.items() if mode != "dense")
    assert retrieval.in_random_order(retriever.store, QUESTIONS, vectors).recall(1) < 0.5
    assert retrieval.of_another(retriever.store, QUESTIONS, vectors).recall(1) == 0
    assert retrieval.by_chance(retriever.store, QUESTIONS, fakes.DIMENSIONS).recall(1) < 0.5
    before = retriever.store.counts()
    assert retrieval.keeping_questions(retriever, QUESTIONS, vectors).recall(1) == 0
    assert retriever.store.counts() == before
    retriever.store.close()


def test_rows_pass_for_what_is_as_good_as_pytorch_and_fail_for_what_is_not():
    good, bad = Found((1,) * 20), Found((None,) * 15 + (1,) * 5)
    all_good = dict.fromkeys(retrieval.SEARCHES, good)
    controls = {"random vectors": bad, retrieval.ANOTHER: bad, "questions are kept": bad}
    of_documents = {retrieval.ANOTHER: bad, retrieval.SHUFFLED: bad}
    rows = retrieval.Examination({"INT8": all_good}, all_good, controls, bad, of_documents, bad).quality()
    assert all(compare.passes(row) for row in rows)
    assert [row["controls"] for row in rows if row.get("control") == "questions are kept"] == [
        "recall@1 of 20 questions"
    ]
    judged = [row["controls"] for row in rows if row.get("control") == "candidates in random order"]
    named = [f"{name} of 20 questions, reranked" for name in ("recall@1", "recall@5", "recall@10", "MRR")]
    assert judged == [*named, "recall@5 of 20 questions, reranked, one passage a document"]
    with_goal = [row["metric"] for row in rows if "goal" in row]
    kinds = ("", ", reranked", ", one passage a document", ", reranked, one passage a document")
    assert with_goal == [f"recall@{k} of 20 questions{how}" for how in kinds for k in (5, 10)]
    all_bad = {"INT8": dict.fromkeys(all_good, bad)}
    worse = retrieval.Examination(all_bad, all_good, controls, bad, of_documents, bad).quality()
    assert not any(compare.passes(row) for row in worse if row["precision"] == "INT8")


def test_vectors_are_kept_and_embedded_once(tmp_path):
    embedder = fakes.Embedder()
    kept = retrieval.Kept(embedder, tmp_path / "vectors.npz")
    first = kept.documents(["one", "two"])
    kept.save()
    again = retrieval.Kept(embedder, tmp_path / "vectors.npz")
    assert np.array_equal(again.documents(["two", "one", "three"])[:2], first[::-1])
    assert embedder.embedded == 3 and again.embedded == 1
    assert (again.dimensions, again.max_tokens) == (embedder.dimensions, embedder.max_tokens)


def test_a_database_of_another_model_is_filled_again(url):
    for identity in ("fake", "another"):
        retriever = retrieval.fill(url, fakes.Embedder(identity), DOCUMENTS[:3], tokens=20, overlap=4)
        assert retriever.embedder.embedded == retriever.store.counts()["chunk"] >= 3
        retriever.store.close()


def test_token_vectors_are_computed_once():
    asked = []
    kept = retrieval.KeptTokens(lambda texts: asked.extend(texts) or fakes.token_vectors(texts))
    first, second = kept(["one two", "three"]), kept(["three", "four", "one two"])
    assert asked == ["one two", "three", "four"]
    assert [own.shape[0] for own in second] == [1, 1, 2] and np.array_equal(first[0], second[2])
    assert np.allclose(first[0], fakes.token_vectors(["one two"])[0], atol=1e-3)


def test_passages_of_another_question_are_of_another_document(retriever):
    asked = [Ask(f"What is word{number}?", f"d{number // 2}", ("x",), "text") for number in range(6)]
    for number in range(3):
        retriever.ingest(f"d{number}", f"word{2 * number} word{2 * number + 1}")
    given = answers.contexts(retriever, asked, 1)
    assert [own[0].source for own in given["top 1 passages"]] == [own.source for own in asked]
    assert all(
        own[0].source != one.source for own, one in zip(given["passages of another question"], asked, strict=True)
    )
    assert given["no passages"] == [[]] * 6


def test_right_answers_are_counted():
    asked = [Ask("How many?", "a", ("7",), "text"), Ask("Who?", "a", ("Fisher",), "text")]
    assert answers.right(lambda question, _: "7 by Bob", asked, [[], []]) == [True, False]
    rows = answers.quality({"INT8": [True] * 8 + [False] * 2}, [True] * 9 + [False], {"no passages": [False] * 10})
    assert [compare.passes(row) for row in rows] == [True, True] and not compare.below_goal(rows[0])
