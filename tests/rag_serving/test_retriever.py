"""What goes in: text that can be stored, and nothing else; questions that can be asked."""

import pytest

from notebooks.rag_serving.pipeline import read_text
from notebooks.rag_serving.pipeline.retriever import MAX_CHARACTERS, MAX_QUESTION, MAX_SOURCE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a.txt is empty"),
        (b" \n\t", "a.txt is empty"),
        (b"text\x00more", "a.txt has a NUL at character 4: it is no text"),
        (b"\x89PNG\r\n\x1a\n\x00\x01", r"a.txt is no text in UTF-8 \(byte 0\)"),
        ("Käse".encode("latin-1"), r"a.txt is no text in UTF-8 \(byte 1\). Convert it to UTF-8 first"),
        ("Text".encode("utf-16"), "no text in UTF-8"),
        (b"x" * (MAX_CHARACTERS + 1), "a.txt has 2,000,001 characters. Give at most 2,000,000"),
        (b"x" * (4 * MAX_CHARACTERS + 1), "a.txt has 8,000,001 bytes"),
    ],
)
def test_a_file_that_is_no_text_is_an_error(data, message):
    with pytest.raises(ValueError, match=message):
        read_text(data, "a.txt")


def test_utf8_is_read_with_and_without_a_mark():
    assert (
        read_text("Käse 日本".encode(), "a.txt") == read_text("Käse 日本".encode("utf-8-sig"), "a.txt") == "Käse 日本"
    )


@pytest.mark.parametrize("text", ["", "a\x00b", "a\ud800b", "x" * (MAX_CHARACTERS + 1)])
def test_a_document_that_cannot_be_stored_writes_nothing(retriever, text):
    with pytest.raises(ValueError, match="a.txt"):
        retriever.ingest("a.txt", text)
    assert retriever.store.counts()["document"] == 0


@pytest.mark.parametrize("source", ["", " ", "a\nb", "a\x00b", "x" * (MAX_SOURCE + 1)])
def test_a_bad_name_is_an_error(retriever, source):
    for work in (lambda: retriever.ingest(source, "text"), lambda: retriever.delete(source)):
        with pytest.raises(ValueError, match="cannot name a document"):
            work()


@pytest.mark.parametrize(
    ("question", "k", "message"),
    [
        (" ", 3, "The question is empty"),
        ("x" * (MAX_QUESTION + 1), 3, "has 10,001 characters"),
        ("a\x00", 3, "The question has a NUL"),
        ("a", 0, "0 passages are asked for"),
        ("a", 51, "Choose from 1 to 50"),
    ],
)
def test_a_bad_question_is_an_error(retriever, question, k, message):
    with pytest.raises(ValueError, match=message):
        retriever.search(question, k)


@pytest.mark.parametrize("question", ["?", "the of and", "😀", "' \" ; --", "x" * MAX_QUESTION])
def test_a_strange_question_is_no_error(retriever, question):
    assert retriever.search(question) == []
    retriever.ingest("a.txt", "some text")
    assert len(retriever.search(question)) <= 1


def test_a_large_document_is_cut_and_found(retriever):
    text = " ".join(f"word{number}" for number in range(4000))
    assert retriever.ingest("large", text) == "new"
    assert retriever.store.counts()["chunk"] > 200
    assert "word3456" in retriever.search("word3456", 1, "words")[0].text
