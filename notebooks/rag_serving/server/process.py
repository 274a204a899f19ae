"""The service as a process: its database, its models, and the address that it listens on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from notebooks.rag_serving.pipeline import Answerer, Embedder, Retriever, Store, open_reranker
from notebooks.rag_serving.pipeline.database import address
from notebooks.rag_serving.server.api import create_app
from utils import bench, paths
from utils.serving import process


def database_folder(use: str = "service") -> Path:
    """Where the embedded database of a use ("service", "notebook", "demo") keeps its data."""
    return paths.models_dir() / "rag_serving-postgres" / use


def retriever_of(
    embedder: Path, reranker: Path | None, url: str | None = None, device: str = "CPU", **properties
) -> Retriever:
    """A retriever with the models of two folders (`open_reranker`), or of one, and the database at `url`; without a
    url, DATABASE_URL's or the embedded one of the service. properties: of OpenVINO, for the embedder."""
    model = Embedder(embedder, device, **properties)
    store = Store(url or address(database_folder()), model.identity, model.dimensions)
    return Retriever(store, model, reranker=open_reranker(reranker, device) if reranker else None)


def worker_retriever(embedder: Path, url: str, workers: int, device: str = "CPU") -> Callable[[], Retriever]:
    """What makes the retriever of one of several workers (`ingesting`), which divide the cores of a machine."""
    threads = max(1, bench.machine()["cores"] // workers)
    properties = {"INFERENCE_NUM_THREADS": threads} if device == "CPU" else {}
    return partial(retriever_of, embedder, None, url, device, **properties)


def serve(retriever: Retriever, llm: Path, device: str = "CPU", host: str = process.LOOPBACK, port: int = 8000) -> None:
    """Serve until Ctrl-C or SIGTERM; prints the address. port 0: a free one.

    Raises ValueError for an address that others can reach (the service has no keys), OSError for a port that is taken.
    """
    if host not in (process.LOOPBACK, "localhost", "::1"):
        raise ValueError(f"{host} can be reached by others, and the service asks for no key: serve on 127.0.0.1.")
    listener = process.listen(host, port)
    app = create_app(retriever, Answerer(llm, device), host=host)
    process.AppServer(app, listener, retriever.store.close, until_eof=False).run()
