"""Documents, passages, vectors and words in PostgreSQL with pgvector, and one SQL statement that searches them.

Three tables hold everything: `document` (source, hash), `chunk` (a passage, its vector), `posting` (which word stands
how often in which passage). A document is written or replaced in one transaction: a crash leaves it old or new.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import psycopg
from pgvector import Vector
from pgvector.psycopg import register_vector
from psycopg.rows import class_row, scalar_row
from psycopg_pool import ConnectionPool, PoolTimeout

from .chunking import Chunk

logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # it reports each attempt to connect on stderr

CONNECTIONS = 8  # at the same time
TIMEOUT_S = 2.0  # to wait for a connection
CANDIDATES = 50  # of each kind of search, before they are fused
EF_SEARCH = 100  # candidates that HNSW keeps while it searches
FOUND = 2 * CANDIDATES  # at most, by both
MODES = {"hybrid": (CANDIDATES, CANDIDATES), "dense": (CANDIDATES, 0), "words": (0, CANDIDATES)}
SCHEMA_LOCK = 7_240_134  # an arbitrary number: of all processes, one at a time prepares the tables

SCHEMA = """
create extension if not exists vector;
create table if not exists meta (key text primary key, value text not null);
create table if not exists document (
    id bigint generated always as identity primary key,
    source text not null unique,
    sha256 text not null  -- of the text and of how it is cut
);
create table if not exists chunk (
    id bigint generated always as identity primary key,
    document bigint not null references document on delete cascade,
    ordinal int not null,
    start int not null,  -- in characters of the document
    text text not null,
    words tsvector not null,
    length int not null,  -- in words
    embedding vector({dimensions}) not null,
    unique (document, ordinal)
);
create table if not exists posting (
    lexeme text not null,
    chunk bigint not null references chunk on delete cascade,
    count int not null,
    length int not null,  -- of the passage
    primary key (lexeme, chunk)
);
create index if not exists posting_of_chunk on posting (chunk);
create index if not exists nearest on chunk using hnsw (embedding vector_ip_ops) with (m = 16, ef_construction = 64);
"""

STAGE = """
create temporary table if not exists staged (ordinal int, start int, text text, title text, embedding vector)
on commit delete rows
"""
COPY_STAGED = "copy staged from stdin (format binary)"
INSERT_CHUNKS = """
with written as (
    insert into chunk (document, ordinal, start, text, words, length, embedding)
    select %(document)s, ordinal, start, text, lexemes,
           (select coalesce(sum(cardinality(positions)), 0) from unnest(lexemes)), embedding
    from staged, to_tsvector('english', title || ' ' || text) as lexemes
    order by ordinal
    returning id, words, length
)
insert into posting (lexeme, chunk, count, length)
select lexeme, written.id, cardinality(positions), written.length
from written, unnest(written.words)
"""

# BM25 (k1 = 1.2, b = 0.75) over the postings, HNSW over the vectors, and both fused by reciprocal ranks. A limit of 0
# switches one of them off.
SEARCH = """
with asked as (
    select lexeme, cardinality(positions) as times from unnest(to_tsvector('english', %(question)s::text))
), size as (
    select count(*)::float8 as chunks, avg(length)::float8 as length from chunk
), weighted as (
    select lexeme, times * ln(1 + (size.chunks - found.chunks + 0.5) / (found.chunks + 0.5)) as idf
    from asked, size, lateral (select count(*) as chunks from posting where posting.lexeme = asked.lexeme) as found
), by_words as (
    select chunk as id, sum(
        idf * posting.count / (posting.count + 1.2 * (0.25 + 0.75 * posting.length / size.length))
    ) as bm25
    from weighted join posting using (lexeme), size
    group by chunk order by bm25 desc, id limit %(words)s
), by_vector as (
    select id, -(embedding <#> %(vector)s) as similarity
    from chunk order by embedding <#> %(vector)s limit %(dense)s
), fused as (
    select id, similarity, dense.rank as dense_rank, bm25, words.rank as words_rank,
           coalesce(1.0 / (60 + dense.rank), 0) + coalesce(1.0 / (60 + words.rank), 0) as score
    from (select *, row_number() over (order by similarity desc, id) as rank from by_vector) as dense
    full join (select *, row_number() over (order by bm25 desc, id) as rank from by_words) as words using (id)
)
select source, ordinal, start, text, score::float8, similarity, dense_rank, bm25, words_rank
from fused join chunk using (id) join document on document.id = chunk.document
order by score desc, chunk.id limit %(k)s
"""


class DatabaseAway(OSError):
    """The database does not answer, its disk is full, or it is a replica, which only reads; nothing was written. The
    next call tries again."""


class OtherEmbedder(ValueError):
    """The vectors in the database were made by another model, and cannot be compared."""


@dataclass(frozen=True)
class Passage:
    """A passage that a search found.

    score: the sum of the reciprocal ranks. similarity: cosine with the question, and dense_rank: its place by that;
    bm25 and words_rank: the same by words. They are None where that search did not find the passage. rerank_score:
    by a reranker, None without one.
    """

    source: str
    ordinal: int
    start: int
    text: str
    score: float
    similarity: float | None
    dense_rank: int | None
    bm25: float | None
    words_rank: int | None
    rerank_score: float | None = None


class Store:
    """The tables of one database. Threads may share it; each call takes a connection of the pool.

    url: of the database. embedder: what identifies the model whose vectors are stored. dimensions: of its vectors.
    exact: compare with every vector, in place of HNSW. Nothing is connected before the first call. Every call raises
    DatabaseAway while the database does not answer, and OtherEmbedder where another model filled it.
    """

    def __init__(
        self, url: str, embedder: str, dimensions: int, *, ef_search: int = EF_SEARCH, exact: bool = False
    ) -> None:
        self.url, self.embedder, self.dimensions = url, embedder, dimensions
        self._settings = f"set hnsw.ef_search = {int(ef_search)}; set enable_indexscan = {'off' if exact else 'on'}"
        self._ready, self._preparing = False, threading.Lock()
        options = {"min_size": 0, "max_size": CONNECTIONS, "timeout": TIMEOUT_S, "reconnect_timeout": 1, "open": True}
        connection = {"connect_timeout": 2, "application_name": "rag_serving", "prepare_threshold": None}
        self._pool = ConnectionPool(
            url, **options, kwargs=connection, check=ConnectionPool.check_connection, configure=self._configure
        )

    def close(self) -> None:
        self._pool.close()

    def add(self, source: str, sha256: str, chunks: Sequence[Chunk], vectors: np.ndarray, title: str = "") -> str:
        """Write a document, or replace it if its hash differs; returns "new", "replaced" or "unchanged".

        vectors: [chunks, dimensions], normalised. title: its words count as words of each passage.
        """
        with self._connection() as connection:
            connection.execute(STAGE)
            connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (source,))
            known = connection.execute("select sha256 from document where source = %s", (source,)).fetchone()
            if known and known[0] == sha256:
                return "unchanged"
            connection.execute("delete from document where source = %s", (source,))
            inserted = "insert into document (source, sha256) values (%s, %s) returning id"
            (document,) = connection.execute(inserted, (source, sha256)).fetchone()
            with connection.cursor().copy(COPY_STAGED) as copy:
                copy.set_types(["int4", "int4", "text", "text", "vector"])
                for ordinal, (chunk, vector) in enumerate(zip(chunks, vectors, strict=True)):
                    copy.write_row((ordinal, chunk.start, chunk.text, title, Vector(np.asarray(vector))))
            connection.execute(INSERT_CHUNKS, {"document": document})
            return "replaced" if known else "new"

    def delete(self, source: str) -> bool:
        """Remove a document with its passages; returns whether it was there."""
        with self._connection() as connection:
            return connection.execute("delete from document where source = %s", (source,)).rowcount > 0

    def sha256(self, source: str) -> str | None:
        """The hash of a document, None if there is none of that name."""
        with self._connection() as connection:
            cursor = connection.cursor(row_factory=scalar_row)
            return cursor.execute("select sha256 from document where source = %s", (source,)).fetchone()

    def sources(self) -> list[str]:
        """The names of all documents, sorted."""
        with self._connection() as connection:
            cursor = connection.cursor(row_factory=scalar_row)
            return cursor.execute("select source from document order by source").fetchall()

    def counts(self) -> dict[str, int]:
        """The number of rows of `document`, `chunk` and `posting`."""
        counting = (
            "select (select count(*) from document), (select count(*) from chunk), (select count(*) from posting)"
        )
        with self._connection() as connection:
            return dict(zip(("document", "chunk", "posting"), connection.execute(counting).fetchone(), strict=True))

    def search(self, question: str, vector: np.ndarray, k: int = 5, mode: str = "hybrid") -> list[Passage]:
        """The k best passages for a question and its vector [dimensions]; mode: one of MODES."""
        if mode not in MODES:
            raise ValueError(f"There is no mode {mode!r}. Choose one of: {', '.join(MODES)}.")
        dense, words = MODES[mode]
        values = {"question": question, "vector": Vector(np.asarray(vector)), "dense": dense, "words": words, "k": k}
        with self._connection() as connection:
            return connection.cursor(row_factory=class_row(Passage)).execute(SEARCH, values).fetchall()

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        """A connection in a transaction, which an exception rolls back."""
        try:
            if not self._ready:
                with self._preparing:
                    self._ready = self._ready or self._prepare()
            with self._pool.connection() as connection:
                yield connection
        except psycopg.errors.ReadOnlySqlTransaction as error:
            raise DatabaseAway(
                "The database is a replica, which only reads. Nothing was written. Write to its primary server."
            ) from error
        except (psycopg.OperationalError, PoolTimeout) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            if isinstance(error, psycopg.errors.DiskFull):
                raise DatabaseAway(
                    f"The disk of the database is full ({reason}). Nothing was written. Make space, and try again."
                ) from error
            raise DatabaseAway(
                f"The database is not available ({reason}). Nothing was written. Start it again; the next request "
                "finds it."
            ) from error

    def _prepare(self) -> bool:
        """Create the tables if they are not there, and compare the embedder with the one that filled them."""
        with psycopg.connect(self.url, connect_timeout=2) as connection:
            (reads_only,) = connection.execute("show transaction_read_only").fetchone()
            if reads_only == "off":  # a replica has the tables of its primary server
                connection.execute("select pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
                connection.execute(SCHEMA.format(dimensions=int(self.dimensions)))
                entry = "insert into meta values ('embedder', %s) on conflict do nothing"
                connection.execute(entry, (self.embedder,))
            try:
                (known,) = connection.execute("select value from meta where key = 'embedder'").fetchone()
            except psycopg.errors.UndefinedTable as error:
                raise DatabaseAway(
                    "The database is a replica, and its primary server's tables have not reached it yet. Try again."
                ) from error
        if known != self.embedder:
            raise OtherEmbedder(
                f"The vectors in this database were made by {known}, and not by {self.embedder}. Use that model, or an "
                "empty database."
            )
        return True

    def _configure(self, connection: psycopg.Connection) -> None:
        register_vector(connection)
        connection.execute(self._settings)
        connection.commit()
