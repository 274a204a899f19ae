"""The endpoints: documents are written, searched and deleted, and questions answered with their sources.

`Guard` checks every request first: who sends it, how large it is, and how many are in flight. The language model
answers one question at a time; the others wait. Errors are {"error": message}.
"""

from __future__ import annotations

import asyncio
import html
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from notebooks.rag_serving.pipeline import Answer, Answerer, DatabaseAway, OtherEmbedder, Passage, Retriever
from notebooks.rag_serving.pipeline.answerer import MAX_PASSAGES
from notebooks.rag_serving.pipeline.retriever import MAX_RESULTS
from utils.serving.guard import Guard, Limits, RequestError, Rules, job

COUNTED = ("/answer", "/ingest", "/search")
LIMITS = Limits(waiting=16, body=2**23)  # a document of 2 million characters fits
Mode = Literal["hybrid", "dense", "words"]


class Document(BaseModel):
    source: str = Field(description="its name; a document of that name is replaced")
    text: str


class Query(BaseModel):
    question: str
    k: int = Field(5, ge=1, le=MAX_RESULTS, description="number of passages")
    mode: Mode = "hybrid"
    rerank: bool = Field(False, description="whether the reranker orders what the search found")
    per_document: int | None = Field(None, ge=1, description="at most so many passages of a document")


class Question(BaseModel):
    question: str
    k: int = Field(3, ge=0, le=MAX_PASSAGES, description="number of passages; 0 answers without retrieval")
    mode: Mode = "hybrid"
    rerank: bool = Field(False, description="as in a search")
    per_document: int | None = Field(None, ge=1, description="as in a search")


class Left:
    """Whether a client has gone; the guard calls `abort` when a request ends."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def abort(self) -> None:
        self.event.set()


def create_app(retriever: Retriever, answerer: Answerer, *, host: str = "127.0.0.1", limits: Limits = LIMITS) -> Guard:
    """The ASGI application. host: the address it is served on; on loopback it answers only loopback.

    limits: one request is worked on and `waiting` more wait; further ones get 503. While the database is away, every
    endpoint that needs it answers 503, and works again once the database is back.
    """
    app = FastAPI(title="Answers from documents", docs_url=None, redoc_url=None, redirect_slashes=False)
    one_answer = asyncio.Semaphore(1)

    @app.post("/ingest")
    async def ingest(document: Document) -> dict[str, str]:
        """Write a document, or replace it: "new", "replaced" or "unchanged"."""
        return {"status": await asyncio.to_thread(retriever.ingest, document.source, document.text)}

    @app.post("/search")
    async def search(query: Query) -> dict[str, list[dict]]:
        """The best passages for a question, with the scores of each kind of search and of the reranker."""
        found = await asyncio.to_thread(retriever.search, *_wanted(query))
        return {"passages": [asdict(passage) for passage in found]}

    @app.post("/answer")
    async def answer(question: Question) -> StreamingResponse:
        """Server-sent events: `passages`, then `text` for each piece of the answer, then `done` (or `error`)."""
        passages = []
        if question.k:
            passages = await asyncio.to_thread(retriever.search, *_wanted(question))
        answerer.prompt(question.question, passages)  # a bad question has its own HTTP status
        left = Left()
        job.get().generations.append(left)
        events = _events(answerer, question.question, passages, one_answer, left.event)
        return StreamingResponse(events, media_type="text/event-stream")

    @app.get("/documents")
    async def documents() -> dict[str, list[str]]:
        """The names of all documents."""
        return {"sources": await asyncio.to_thread(retriever.store.sources)}

    @app.delete("/documents")
    async def delete(source: str) -> dict[str, str]:
        """Remove a document; it is in no later answer."""
        if not await asyncio.to_thread(retriever.delete, source):
            raise RequestError(404, f"There is no document {source!r}. GET /documents lists them.")
        return {"status": "deleted"}

    @app.get("/health")
    async def health() -> dict[str, int | str]:
        """The number of documents and passages; 503 while the database is away."""
        return {"status": "ok"} | await asyncio.to_thread(retriever.store.counts)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_page(app.openapi()))

    _add_errors(app)
    rules = Rules(counted=COUNTED)
    return Guard(
        app,
        lambda path, body: body,
        rules,
        max_concurrent=1 + limits.waiting,
        host=host,
        limits=limits,
        forward=lambda request: request,
    )


def _wanted(query: Query | Question) -> tuple:
    """The arguments of `Retriever.search`."""
    return query.question, query.k, query.mode, query.rerank, query.per_document


async def _events(
    answerer: Answerer, question: str, passages: list[Passage], one_answer: asyncio.Semaphore, left: threading.Event
) -> AsyncIterator[str]:
    """The events of an answer. It ends early once `left` is set."""
    yield _event("passages", [asdict(passage) for passage in passages])
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def piece(text: str) -> bool:
        loop.call_soon_threadsafe(pieces.put_nowait, text)
        return left.is_set()

    def work() -> Answer:
        try:
            return answerer.ask(question, passages, piece)
        finally:
            loop.call_soon_threadsafe(pieces.put_nowait, None)

    async with one_answer:
        if left.is_set():
            return
        working = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            while (text := await pieces.get()) is not None:
                yield _event("text", {"text": text})
            result = await working
        except Exception as error:  # too late for another HTTP status
            yield _event("error", {"error": f"The answer ended early: {error}"})
            return
        finally:
            left.set()
            await asyncio.wait([working])  # the model is free for the next one
    done = {"text": result.text, "support": result.support, "finish_reason": result.finish_reason}
    times = {name: round(getattr(result, name), 4) for name in ("first_token_s", "seconds")}
    yield _event("done", done | times | {"prompt_tokens": result.prompt_tokens})


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def _add_errors(app: FastAPI) -> None:
    """Answer every error as {"error": message}."""

    def reply(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": message}, status, headers)

    @app.exception_handler(DatabaseAway)
    async def away(_: Request, error: DatabaseAway):
        return reply(503, str(error), {"Retry-After": "1"})

    @app.exception_handler(OtherEmbedder)
    async def other(_: Request, error: OtherEmbedder):
        return reply(409, str(error))

    @app.exception_handler(ValueError)
    async def bad_value(_: Request, error: ValueError):
        return reply(400, str(error))

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: RequestValidationError):
        first = error.errors()[0]
        return reply(400, f"{'.'.join(map(str, first['loc'][1:])) or 'The request'}: {first['msg']}.")

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException):
        return reply(error.status_code, error.detail)


def _page(schema: dict) -> str:
    """The OpenAPI description as a page without scripts."""
    parts = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2>{method.upper()} {path}</h2><p>{html.escape(about.get('description', ''))}</p>")
            body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            name = body.get("$ref", "").rpartition("/")[2]
            if name:
                fields = json.dumps(schema["components"]["schemas"][name]["properties"], indent=1)
                parts.append(f"<pre>{html.escape(fields)}</pre>")
    text = '<p>For programs: <a href="/openapi.json">/openapi.json</a></p>'
    return f"<!doctype html><title>{schema['info']['title']}</title><h1>{schema['info']['title']}</h1>{text}" + "".join(
        parts
    )
