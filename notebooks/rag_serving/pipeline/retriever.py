"""Write documents to a `Store`, and find passages again."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence

from .chunking import split
from .embedder import Embedder
from .reranker import CANDIDATES, Reranker, reorder
from .store import FOUND, Passage, Store

TOKENS, OVERLAP = 100, 20  # of a passage; a small language model answers better from short ones
MAX_CHARACTERS = 2_000_000  # of a document
MAX_QUESTION = 10_000  # characters
MAX_SOURCE = 300  # characters
MAX_RESULTS = 50


class Retriever:
    """Documents go in, passages come out.

    tokens, overlap: of the passages. with_source: whether the name of its source is embedded with each passage, and
    its words count. reranker: puts what a search found into a better order; without one, the search decides. Threads
    may share it.
    """

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        *,
        tokens: int = TOKENS,
        overlap: int = OVERLAP,
        with_source: bool = True,
        reranker: Reranker | None = None,
    ) -> None:
        self.store, self.embedder, self.reranker = store, embedder, reranker
        self.tokens, self.overlap, self.with_source = tokens, overlap, with_source

    def ingest(self, source: str, text: str) -> str:
        """Write a document, or replace the one of that name; returns "new", "replaced" or "unchanged".

        Raises ValueError for a name or a text that cannot be stored, DatabaseAway, and OtherEmbedder.
        """
        check_source(source)
        check_document(source, text)
        cut = [text, self.tokens, self.overlap, self.with_source]
        digest = hashlib.sha256(json.dumps(cut).encode()).hexdigest()
        if self.store.sha256(source) == digest:
            return "unchanged"  # nothing is embedded
        chunks = split(text, self.embedder.count_tokens, self.tokens, self.overlap)
        title = " ".join(re.findall(r"[^\W_]+", source)) if self.with_source else ""
        texts = [self._read(source, chunk.text) for chunk in chunks]
        return self.store.add(source, digest, chunks, self.embedder.documents(texts), title)

    def search(
        self, question: str, k: int = 5, mode: str = "hybrid", rerank: bool = True, per_document: int | None = None
    ) -> list[Passage]:
        """The k best passages for a question; mode: "hybrid", "dense" (vectors only) or "words" (BM25 only).

        rerank: whether the reranker, if there is one, orders the first CANDIDATES passages (k, if that is more).
        per_document: at most so many passages of each document, so that other documents come in; None: any number.
        Raises ValueError for a question that is empty or too long, and for numbers out of range; DatabaseAway.
        """
        check_question(question)
        if not 1 <= k <= MAX_RESULTS:
            raise ValueError(f"{k} passages are asked for. Choose from 1 to {MAX_RESULTS}.")
        if per_document is not None and per_document < 1:
            raise ValueError(f"{per_document} passages of a document are asked for. Choose 1 or more.")
        reranked = max(k, CANDIDATES) if rerank and self.reranker else 0
        needed = max(k, reranked) if per_document is None else FOUND
        found = self.store.search(question, self.embedder.question(question), needed, mode)
        if reranked:
            found = [*self.rerank(question, found[:reranked]), *found[reranked:]]
        return (found if per_document is None else at_most(found, per_document))[:k]

    def rerank(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """Passages that a search found, in the order of the reranker."""
        texts = [self._read(own.source, own.text) for own in passages]
        return reorder(passages, self.reranker.scores(question, texts))

    def delete(self, source: str) -> bool:
        """Remove a document; returns whether it was there."""
        check_source(source)
        return self.store.delete(source)

    def _read(self, source: str, text: str) -> str:
        """What the models read of a passage."""
        return f"{source}\n{text}" if self.with_source else text


def at_most(passages: Sequence[Passage], per_document: int) -> list[Passage]:
    """The first `per_document` passages of each document, in their order."""
    kept, count = [], Counter()
    for own in passages:
        count[own.source] += 1
        if count[own.source] <= per_document:
            kept.append(own)
    return kept


def read_text(data: bytes, name: str) -> str:
    """The text of a file. Raises ValueError, which names the file, for data that are not text in UTF-8."""
    if len(data) > 4 * MAX_CHARACTERS:
        raise ValueError(f"{name} has {len(data):,} bytes. Give at most {4 * MAX_CHARACTERS:,}.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is no text in UTF-8 (byte {error.start:,}). Convert it to UTF-8 first.") from None
    check_document(name, text)
    return text


def check_document(source: str, text: str) -> None:
    """Raise ValueError for a text that is empty, too long, or cannot be stored."""
    if not text.strip():
        raise ValueError(f"{source} is empty. Give a text.")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{source} has {len(text):,} characters. Give at most {MAX_CHARACTERS:,}: divide it.")
    _check_characters(source, text)


def check_source(source: str) -> None:
    """Raise ValueError for a name that is empty, too long or has control characters."""
    if not source.strip() or len(source) > MAX_SOURCE or not source.isprintable():
        raise ValueError(f"{source[:40]!r} cannot name a document. Use 1 to {MAX_SOURCE} printable characters.")


def check_question(question: str) -> None:
    """Raise ValueError for a question that is empty or too long."""
    if not question.strip():
        raise ValueError("The question is empty. Type one.")
    if len(question) > MAX_QUESTION:
        raise ValueError(f"The question has {len(question):,} characters. Use at most {MAX_QUESTION:,}.")
    _check_characters("The question", question)


def _check_characters(name: str, text: str) -> None:
    """PostgreSQL stores no NUL, and UTF-8 has no code for a half of a pair of surrogates."""
    if found := re.search("[\x00\ud800-\udfff]", text):
        kind = "a NUL" if found[0] == "\x00" else "half a surrogate pair"
        raise ValueError(f"{name} has {kind} at character {found.start():,}: it is no text. Give text in UTF-8.")
