"""The nearest of seeded vectors, with pgvector."""

import numpy as np

from notebooks.rag_serving.measuring import vectors


def test_vectors_are_always_the_same_and_lie_in_groups(monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK", 400)
    blocks = list(vectors.seeded(1000, 16))
    made = np.concatenate(blocks)
    assert [len(own) for own in blocks] == [400, 400, 200]
    assert np.array_equal(made, np.concatenate(list(vectors.seeded(1000, 16))))
    assert np.allclose(np.linalg.norm(made, axis=1), 1)
    monkeypatch.setattr(vectors, "GROUPS", 10)
    grouped = np.concatenate(list(vectors.seeded(1000)))
    assert 0.08 < (grouped @ grouped.T > 0.3).mean() < 0.13  # a tenth is of the same group


def test_hnsw_finds_what_an_exact_search_finds(url):
    notes = vectors.measure(url, 2000)
    recalls = [notes[f"vectors: 2,000, HNSW, ef_search {ef}, recall"] for ef in vectors.EF_SEARCH]
    assert 0.5 < recalls[0] <= recalls[1] and recalls[1] > 0.8
    assert notes["vectors: 2,000, MB of HNSW"] > notes["vectors: 2,000, MB of vectors"] > 2000 * 384 * 4 / 1e6
