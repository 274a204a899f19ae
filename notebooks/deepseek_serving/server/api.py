"""The endpoints of OpenVINO Model Server, answered by an `Engine`.

Chat requests go through the router of fastapi-openai-compat, which parses them and streams replies. This module gives
replies the form of Model Server's: no id, a chunk with the role first, `[DONE]` last, errors as {"error": message}.
`Guard` checks every request first.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi_openai_compat import ChatCompletion, create_chat_completion_router, create_models_router
from starlette.exceptions import HTTPException as StarletteHTTPException

from notebooks.deepseek_serving.server.parsing import Limits, parse
from notebooks.deepseek_serving.server.service import Service
from utils.serving import start
from utils.serving.engine import EngineError, Generation, Piece
from utils.serving.guard import Guard, RequestError, Rules, job

DONE = "[DONE]"
RULES = Rules(
    counted={f"/{version}/{kind}" for version in ("v1", "v3") for kind in ("chat/completions", "completions")},
    public={"/v2/health/live", "/v2/health/ready"},
    bad_json=412,  # as Model Server answers
)


class Frame(ChatCompletion):
    """A reply that the router sends unchanged: `text` in a stream, `reply` otherwise."""

    def model_dump_json(self, **_) -> str:
        return self.text

    def model_dump(self, **_) -> dict:
        return self.reply


def create_app(service: Service, *, host: str = "127.0.0.1", api_key: str | None = None, limits: Limits | None = None):
    """The ASGI application.

    host: the address it is served on. On loopback it answers only requests that were addressed to loopback.
    api_key: it then answers only requests with this key (`Authorization: Bearer KEY`).
    """
    app = FastAPI(title="Local model server", openapi_url=None, redirect_slashes=False)
    limits = limits or Limits()

    def check(path: str, body) -> dict:
        max_tokens = service.repository.options.max_tokens_limit
        return parse(body, chat="/chat/" in path, name=service.name, max_tokens=max_tokens, limits=limits)

    async def chat(model: str, messages: list, body: dict):
        frames = answer(service, chat=True)
        first = await anext(frames)  # an error before the first frame has its own HTTP status
        return as_frames(first, frames) if isinstance(first, str) else Frame.model_construct(reply=first)

    router = create_chat_completion_router(
        list_models=lambda: [service.name], run_completion=chat, include_models_endpoints=False
    )
    endpoints = {route.path: route.endpoint for route in router.routes}
    models = create_models_router(list_models=service.names, owned_by="OVMS")
    list_models = next(route.endpoint for route in models.routes if route.path == "/v1/models")

    async def completions():
        frames = answer(service, chat=False)
        first = await anext(frames)
        if isinstance(first, str):
            return StreamingResponse(as_events(first, frames), media_type="text/event-stream")
        return JSONResponse(first)

    for version in ("/v1", "/v3"):
        add = app.add_api_route
        add(f"{version}/chat/completions", endpoints["/v1/chat/completions"], methods=["POST"], response_model=None)
        add(f"{version}/completions", completions, methods=["POST"], response_model=None)
        add(f"{version}/models", list_models, methods=["GET"], response_model=None)
    _add_status(app, service)
    _add_errors(app)
    max_concurrent = service.repository.options.max_num_seqs + limits.waiting
    options = {"max_concurrent": max_concurrent, "host": host, "api_key": api_key, "limits": limits}
    service.guard = Guard(app, check, RULES, forward=_fields_of_router, **options)
    return service.guard


def _fields_of_router(request: dict) -> dict:
    """What the chat router reads of a request."""
    return {key: request[key] for key in ("model", "messages", "stream")}


def _add_status(app: FastAPI, service: Service) -> None:
    """Configuration, KServe v2 health and metadata, metrics."""

    @app.get("/v1/config")
    async def config():
        return service.status()

    @app.post("/v1/config/reload")
    async def reload():
        try:
            changed = await service.reload()
        except (ValueError, OSError) as error:
            raise RequestError(400, f"Reloading config failed. {error}") from error
        return JSONResponse(service.status(), 201 if changed else 200)

    @app.get("/v2")
    async def server():
        return {"name": "OpenVINO GenAI, local server", "version": service.version, "extensions": []}

    @app.get("/v2/health/live")
    async def live():
        return Response()

    @app.get("/v2/health/ready")
    async def ready():
        return _ready(service)

    @app.get("/v2/models/{name}")
    async def metadata(name: str):
        _check_name(service, name)
        return {"name": name, "versions": ["1"], "platform": "OpenVINO", "inputs": [], "outputs": []}

    @app.get("/v2/models/{name}/ready")
    async def model_ready(name: str):
        _check_name(service, name)
        return _ready(service)

    @app.get("/metrics")
    async def metrics():
        text, kind = service.metrics()
        return Response(text, media_type=kind)


def _check_name(service: Service, name: str) -> None:
    if name != service.name:
        raise RequestError(404, "Model with requested name is not found")


def _ready(service: Service) -> Response:
    problem = service.engine.problem
    return JSONResponse({"error": problem}, 503) if problem else Response()


def _add_errors(app: FastAPI) -> None:
    """Answer every error as {"error": message}."""

    @app.exception_handler(StarletteHTTPException)
    async def http_error(http: Request, error: StarletteHTTPException):
        if isinstance(error, RequestError):
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        if error.status_code == 404:
            return JSONResponse({"error": "Invalid request URL"}, 404)
        if error.status_code == 405:
            return JSONResponse({"error": "Unsupported method"}, 406, error.headers)
        return JSONResponse({"error": str(error.detail)}, error.status_code)

    @app.exception_handler(Exception)
    async def internal_error(http: Request, error: Exception):
        return JSONResponse({"error": f"Internal error: {type(error).__name__}"}, 500)


# --- answers --------------------------------------------------------------------------------------------------


async def answer(service: Service, *, chat: bool) -> AsyncIterator[Any]:
    """Yield the reply to the current `job`: JSON texts and `[DONE]` for a stream, otherwise one dict.

    Raises RequestError, but only before the first yield.
    """
    request = job.get().request
    generation = await _start(service, request)
    kind = "chat.completion" if chat else "text_completion"
    head = {"created": int(time.time()), "model": request["model"]}
    if not request["stream"]:
        yield await _complete_reply(generation, head | {"object": kind}, chat)
        return
    head |= {"object": f"{kind}.chunk"}
    usage = {"usage": None} if request["include_usage"] else {}
    prefix = '{"choices":[{"finish_reason":%s,"index":0,"logprobs":null,' + ('"delta":' if chat else '"text":')
    suffix = "}]," + json.dumps(head | usage, separators=(",", ":"))[1:]
    piece = await _read(generation)
    if chat:
        yield prefix % "null" + '{"role":"assistant","content":null}' + suffix
    while True:
        if piece.text or piece.finish_reason:
            text = json.dumps(piece.text, ensure_ascii=False)
            reason = f'"{piece.finish_reason}"' if piece.finish_reason else "null"
            yield prefix % reason + (f'{{"content":{text}}}' if chat else text) + suffix
        if piece.finish_reason:
            break
        try:
            piece = await generation.read()
        except EngineError as error:  # too late for another HTTP status
            yield json.dumps({"error": str(error)})
            return
    if request["include_usage"]:
        last = {"choices": []} | head | {"usage": _usage(generation, piece.tokens)}
        yield json.dumps(last, separators=(",", ":"))
    yield DONE


async def _start(service: Service, request: dict) -> Generation:
    engine = service.engine
    if engine.problem:
        raise RequestError(503, engine.problem)
    ids = await start.encode(engine, request["messages"], request["prompt"])
    length, context = ids.shape[1], engine.context
    if length == 0:
        raise RequestError(400, "The prompt has no tokens")
    if length >= context:
        raise RequestError(400, f"Number of prompt tokens: {length} exceeds model max length: {context}")
    max_tokens = request["max_tokens"]
    if max_tokens is not None and length + max_tokens > context:
        raise RequestError(
            400,
            f"Number of prompt tokens: {length} + max tokens value: {max_tokens} exceeds model max length: {context}",
        )
    config = engine.config()
    for key, value in request["config"].items():
        setattr(config, key, value)
    config.do_sample = config.temperature > 0
    config.max_new_tokens = max_tokens or min(service.repository.options.max_tokens_limit, context - length)
    return start.submit(engine, ids, config)


async def _read(generation: Generation) -> Piece:
    try:
        return await generation.read()
    except EngineError as error:
        raise RequestError(500, str(error)) from error


async def _complete_reply(generation: Generation, head: dict, chat: bool) -> dict:
    pieces = [await _read(generation)]
    while pieces[-1].finish_reason is None:
        pieces.append(await _read(generation))
    text = "".join(piece.text for piece in pieces)
    content = {"message": {"content": text, "role": "assistant"}} if chat else {"text": text}
    choice = {"finish_reason": pieces[-1].finish_reason, "index": 0, "logprobs": None} | content
    return {"choices": [choice]} | head | {"usage": _usage(generation, pieces[-1].tokens)}


def _usage(generation: Generation, tokens: int) -> dict[str, int]:
    total = generation.prompt_tokens + tokens
    return {"prompt_tokens": generation.prompt_tokens, "completion_tokens": tokens, "total_tokens": total}


async def as_frames(first: str, rest: AsyncIterator[str]) -> AsyncIterator[Frame]:
    """The texts of a stream in the form that the chat router sends."""
    yield Frame.model_construct(text=first)
    async for text in rest:
        yield Frame.model_construct(text=text)


async def as_events(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    """The texts of a stream as server-sent events."""
    yield f"data: {first}\n\n"
    async for text in rest:
        yield f"data: {text}\n\n"
