"""Passages: nothing is lost, none is too long, and neighbours overlap."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from notebooks.rag_serving.pipeline.chunking import LONGEST_WORD, split


def lengths(words):
    """One token for each two letters."""
    return [(len(word) + 1) // 2 for word in words]


@given(st.text(st.sampled_from("ab c\n"), max_size=400), st.integers(4, 30), st.integers(0, 1))
def test_every_word_is_in_a_passage_and_none_is_too_long(text, size, overlap):
    chunks = split(text, lengths, size, overlap)
    covered = set()
    for chunk in chunks:
        assert text[chunk.start :].startswith(chunk.text)
        words = chunk.text.split()
        assert sum(lengths(words)) <= size or len(words) == 1
        covered |= set(range(chunk.start, chunk.start + len(chunk.text)))
    assert all(place in covered for place, letter in enumerate(text) if not letter.isspace())


def test_neighbours_share_the_overlap():
    text = " ".join(f"w{number:03d}" for number in range(100))
    chunks = split(text, lambda words: [1] * len(words), 20, 5)
    for one, after in zip(chunks, chunks[1:], strict=False):
        assert one.text.split()[-5:] == after.text.split()[:5]
    assert [len(chunk.text.split()) for chunk in chunks[:-1]] == [20] * (len(chunks) - 1)


def test_a_passage_ends_with_a_line_where_it_can():
    text = "one two three four five six seven eight\nnine ten eleven twelve"
    assert split(text, lambda words: [1] * len(words), 10, 0)[0].text.endswith("eight")


def test_a_word_without_end_is_cut():
    chunks = split("x" * (3 * LONGEST_WORD), lambda words: [10] * len(words), 10, 0)
    assert [len(chunk.text) for chunk in chunks] == [LONGEST_WORD] * 3


def test_an_empty_text_has_no_passages_and_a_large_overlap_is_an_error():
    assert split(" \n", lengths, 10, 0) == []
    with pytest.raises(ValueError, match="The overlap is 5 tokens of 10. Choose less than half"):
        split("a", lengths, 10, 5)
