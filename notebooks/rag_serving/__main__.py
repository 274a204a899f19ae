"""The command line: `python -m notebooks.rag_serving ingest FILE ...`, `search QUESTION`, `ask QUESTION`, `serve`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from notebooks.rag_serving import convert
from notebooks.rag_serving.pipeline import Answerer, Passage, Retriever
from notebooks.rag_serving.server import ingesting
from notebooks.rag_serving.server.process import retriever_of, serve, worker_retriever
from utils import command

SHOWN = 300  # characters of a passage


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status is 1 after an error, whose message is printed."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="Answer questions from documents.")
    parser.add_argument("--model", choices=list(convert.MODELS), default="tiny")
    parser.add_argument("--device", default="CPU", help="OpenVINO's name of the device")
    parser.add_argument("--database", metavar="URL", help="default: DATABASE_URL, or one that is started here")
    commands = parser.add_subparsers(dest="command", required=True)
    ingest = commands.add_parser("ingest", help="write text files, or replace those of the same name")
    ingest.add_argument("files", nargs="+", type=Path)
    ingest.add_argument("--workers", type=_positive, default=1, help="processes, which Ray starts if there are several")
    for name, about in (("search", "show passages"), ("ask", "answer from passages")):
        own = commands.add_parser(name, help=about)
        own.add_argument("question")
        own.add_argument("-k", type=int, default=3, help="number of passages")
        own.add_argument("--mode", default="hybrid", help="hybrid, dense or words")
        own.add_argument("--rerank", action="store_true", help="put the passages into the order of the reranker")
        own.add_argument("--per-document", type=_positive, help="at most so many passages of a document")
    commands.add_parser("delete", help="remove a document").add_argument("source")
    service = commands.add_parser("serve", help="answer over HTTP")
    service.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    return command.run(_run, options)


def _run(options: argparse.Namespace) -> None:
    embedder, llm = convert.prepare(options.model)
    reranks = options.command == "serve" or getattr(options, "rerank", False)  # other commands do without its download
    reranker = convert.prepare_reranker(options.model) if reranks else None
    retriever = retriever_of(embedder, reranker, options.database, options.device)
    try:
        if options.command == "ingest":
            _ingest(retriever, embedder, options)
        elif options.command == "delete":
            if not retriever.delete(options.source):
                raise ValueError(f"There is no document {options.source!r}.")
        elif options.command == "serve":
            serve(retriever, llm, options.device, port=options.port)
        else:
            wanted = (options.question, options.k, options.mode, options.rerank, options.per_document)
            passages = retriever.search(*wanted)
            for number, own in enumerate(passages, 1):
                text = " ".join(own.text.split())[:SHOWN]
                print(f"[{number}] {own.source}, {own.score:.4f} ({_stages(own)}): {text}")
            if options.command == "ask":
                if not passages:
                    print("No passage fits: the answer comes from the model's memory.", file=sys.stderr)
                print(Answerer(llm, options.device).ask(options.question, passages).text)
    finally:
        retriever.store.close()


def _stages(own: Passage) -> str:
    """The place of a passage by each search that found it, and the reranker's score."""
    places = {"vector": own.dense_rank, "words": own.words_rank}
    shown = [f"{search} {place}" for search, place in places.items() if place is not None]
    return ", ".join(shown if own.rerank_score is None else [*shown, f"reranker {own.rerank_score:.3f}"])


def _ingest(retriever: Retriever, embedder: Path, options: argparse.Namespace) -> None:
    """A file that is no text is reported, and the others are written. Raises ValueError at the end if there was one."""
    bad = 0
    for own in _outcomes(retriever, embedder, options):
        if own["error"]:
            bad += 1
            print(own["error"], file=sys.stderr)
        else:
            print(f"{own['source']}: {own['status']}", flush=True)
    if bad:
        raise ValueError(f"{bad} of {len(options.files)} files were not written.")


def _outcomes(retriever: Retriever, embedder: Path, options: argparse.Namespace) -> Iterator[ingesting.Outcome]:
    files, workers, url = options.files, options.workers, retriever.store.url
    if workers == 1:
        yield from ingesting.here(files, retriever)
        return
    from utils.ray_cluster.cluster import Cluster  # takes seconds

    with Cluster():
        yield from ingesting.by_workers(files, worker_retriever(embedder, url, workers, options.device), workers)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
