"""The tables and the one SQL statement, on a real PostgreSQL."""

import numpy as np
import psycopg
import pytest

from notebooks.rag_serving.pipeline import OtherEmbedder, Retriever
from notebooks.rag_serving.pipeline.store import SEARCH
from tests.rag_serving import fakes

TEXTS = {
    "animals": "The quick brown fox jumps over the lazy dog. Foxes and dogs are animals that run and jump.",
    "wine": "Red wine and white wine come from grapes. The grapes of this wine grow in Italy, where it is warm.",
    "ships": "A ship sails over the sea. The captain of the ship drinks wine when the sea is calm.",
    "numbers": "One, two, three and four are numbers; 1797 is one, too. Add two numbers and you get a number.",
}


@pytest.fixture
def filled(retriever) -> Retriever:
    for source, text in TEXTS.items():
        assert retriever.ingest(source, text) == "new"
    return retriever


def test_a_second_run_changes_nothing(filled):
    before, embedded = filled.store.counts(), filled.embedder.embedded
    assert [filled.ingest(source, text) for source, text in TEXTS.items()] == ["unchanged"] * 4
    assert filled.store.counts() == before and filled.embedder.embedded == embedded


def test_a_changed_document_replaces_the_old_one(filled):
    assert filled.ingest("wine", "Beer is made of barley.") == "replaced"
    assert filled.store.sources() == sorted(TEXTS)
    found = filled.search("grapes of Italy", 10, "words")
    assert "wine" not in [passage.source for passage in found]
    assert filled.search("barley beer", 1)[0].source == "wine"


@pytest.mark.parametrize("mode", ["hybrid", "dense", "words"])
def test_a_document_gives_at_most_so_many_passages(filled, mode):
    filled.ingest("cellar", "Wine lies here. " * 40)  # passages that crowd all others out
    found = filled.search("white wine", 5, mode)
    assert [own.source for own in found].count("cellar") >= 4
    for most in (1, 2):
        limited = filled.search("white wine", 5, mode, per_document=most)
        sources = [own.source for own in limited]
        assert max(map(sources.count, sources)) == most and {"wine", "ships"} <= set(sources)
        best = next(own for own in filled.search("white wine", 50, mode) if own.source == "cellar")
        scores = [own.score for own in limited]
        assert best in limited and scores == sorted(scores, reverse=True)
    with pytest.raises(ValueError, match="0 passages of a document are asked for. Choose 1 or more"):
        filled.search("wine", 5, mode, per_document=0)


def test_another_way_of_cutting_replaces_it_too(filled):
    other = Retriever(filled.store, filled.embedder, tokens=10, overlap=2)
    assert other.ingest("wine", TEXTS["wine"]) == "replaced"


def test_a_deleted_document_is_in_no_result_and_leaves_no_row(filled):
    assert filled.delete("wine") and not filled.delete("wine")
    for mode in ("hybrid", "dense", "words"):
        assert "wine" not in [passage.source for passage in filled.search("red wine of Italy", 10, mode)]
    for source in TEXTS:
        filled.delete(source)
    assert filled.store.counts() == {"document": 0, "chunk": 0, "posting": 0}


@pytest.mark.parametrize("mode", ["hybrid", "dense", "words"])
def test_the_right_passage_comes_first(filled, mode):
    assert filled.search("wine from the grapes of Italy", 1, mode)[0].source == "wine"
    assert filled.search("the captain sails a ship", 1, mode)[0].source == "ships"


def test_the_question_is_never_stored(filled):
    before = filled.store.counts()
    filled.search("Who drinks wine?")
    assert filled.store.counts() == before


def test_passages_say_where_they_stand(filled):
    for passage in filled.search("wine sea number fox", 50):
        assert TEXTS[passage.source][passage.start :].startswith(passage.text)


def test_bm25_in_sql_is_bm25(filled):
    import bm25s

    with psycopg.connect(filled.store.url) as connection:
        rows = connection.execute("select chunk, lexeme, count from posting order by chunk").fetchall()
        (asked,) = connection.execute(
            "select array_agg(lexeme) from unnest(to_tsvector('english', 'wine of the ship and two numbers'))"
        ).fetchone()
        ids = sorted({chunk for chunk, _, _ in rows})
        passages = {
            row[0]: row[1:]
            for row in connection.execute(
                "select chunk.id, source, ordinal from chunk join document on document.id = chunk.document"
            )
        }
    tokens = [[word for chunk, word, count in rows if chunk == own for _ in range(count)] for own in ids]
    reference = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    reference.index(tokens, show_progress=False)
    expected = dict(zip((passages[own] for own in ids), reference.get_scores(asked), strict=True))
    found = filled.search("wine of the ship and two numbers", 50, "words")
    assert {(own.source, own.ordinal) for own in found} == {place for place, score in expected.items() if score > 0}
    for own in found:
        assert own.bm25 == pytest.approx(expected[own.source, own.ordinal], rel=1e-4)


def test_the_hybrid_adds_reciprocal_ranks(filled):
    question = "wine and ship"
    ranks = {
        mode: {(own.source, own.ordinal): place for place, own in enumerate(filled.search(question, 50, mode), 1)}
        for mode in ("dense", "words")
    }
    found = filled.search(question, 50)
    for own in found:
        place = (own.source, own.ordinal)
        expected = sum(1 / (60 + known[place]) for known in ranks.values() if place in known)
        assert own.score == pytest.approx(expected)
        assert (own.dense_rank, own.words_rank) == (ranks["dense"].get(place), ranks["words"].get(place))
    assert [own.score for own in found] == sorted((own.score for own in found), reverse=True)


def test_similarity_is_the_cosine(filled):
    question = filled.embedder.question("wine")
    for own in filled.search("wine", 50, "dense"):
        vector = filled.embedder.question(f"{own.source}\n{own.text}")
        assert own.similarity == pytest.approx(float(vector @ question), abs=1e-5)


def test_many_vectors_are_searched_by_hnsw(url):
    """With a few thousand vectors, PostgreSQL takes the index, and finds nearly what comparing all of them finds."""
    store, rng = fakes.store(url), np.random.default_rng(0)
    store.counts()
    vectors = rng.standard_normal((3000, fakes.DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    with psycopg.connect(url) as connection:
        connection.execute("insert into document (source, sha256) values ('seeded', '')")
        with connection.cursor().copy(
            "copy chunk (document, ordinal, start, text, words, length, embedding) from stdin"
        ) as copy:
            for ordinal, vector in enumerate(vectors):
                copy.write_row((1, ordinal, 0, "x", "", 0, str(vector.tolist())))
    with psycopg.connect(url) as connection:
        connection.execute("analyze chunk")
        asked = {"question": "x", "vector": str(vectors[7].tolist()), "dense": 50, "words": 0, "k": 10}
        statement = SEARCH.replace("%(vector)s", "%(vector)s::vector")
        plan = "\n".join(row[0] for row in connection.execute("explain " + statement, asked))
    assert "Index Scan using nearest" in plan
    exact = fakes.store(url, exact=True)
    shared = 0
    for vector in vectors[:20]:
        both = [{own.ordinal for own in one.search("x", vector, 10, "dense")} for one in (store, exact)]
        shared += len(both[0] & both[1])
    assert shared >= 180
    store.close()
    exact.close()


def test_another_model_is_refused(filled, url):
    other = fakes.store(url, "another")
    message = ""
    try:
        other.counts()
    except OtherEmbedder as error:
        message = str(error)
    other.close()
    assert "were made by fake, and not by another. Use that model, or an empty database" in message


def test_an_unknown_mode_is_an_error(filled):
    with pytest.raises(ValueError, match="There is no mode 'fast'. Choose one of: hybrid, dense, words"):
        filled.search("wine", 1, "fast")


@pytest.mark.parametrize(
    "text",
    [
        "'; drop table document; --",
        "x' or '1'='1",
        "%s %(k)s {} $1",
        "\\'; select pg_sleep(9); --",
        "a & b | !c <-> (d",
    ],
)
def test_no_text_becomes_sql(filled, text):
    assert filled.ingest(text, f"{text} is a text of a document about wine") == "new"
    assert text in [own.source for own in filled.search(f"{text} wine", 10)]
    assert filled.delete(text)
    assert filled.store.counts()["document"] == len(TEXTS)
