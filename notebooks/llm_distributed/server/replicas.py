"""Replicas of the serving engine behind Ray Serve: each answers the OpenAI routes, and Serve shares out the requests.

`Replica` is a deployment: `serve.run(Replica.options(num_replicas=2).bind(settings))` starts two, and the same call
again replaces them one by one (a rolling restart). `run` does both, and waits.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from operator import attrgetter

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi_openai_compat import ChatCompletion, ChatRequest, Choice, Message, create_chat_completion_router
from pydantic import BaseModel, Field, ValidationError
from ray import serve
from starlette.exceptions import HTTPException

from utils.ray_cluster.cluster import CPUS
from utils.serving import process, start
from utils.serving.engine import Engine, Generation, Piece, Settings
from utils.serving.guard import Guard, Limits, RequestError, Rules

MAX_TOKENS = 1024  # of an answer
MAX_ONGOING = 64  # requests in one replica's batch
RULES = Rules(counted={"/v1/chat/completions", "/chat/completions"})


class Text(BaseModel):
    role: str
    content: str


class StreamOptions(BaseModel):
    include_usage: bool = False


class Question(ChatRequest):
    """The fields of a request that the engine knows."""

    messages: list[Text] = Field(min_length=1)
    max_tokens: int = Field(256, ge=1, le=MAX_TOKENS)
    temperature: float = Field(0.0, ge=0, le=2)
    ignore_eos: bool = False
    stream_options: StreamOptions = StreamOptions()


class Done(ChatCompletion):
    """The end of a stream."""

    def model_dump_json(self, **_) -> str:
        return "[DONE]"


def create_app(engine: Engine) -> Guard:
    """The ASGI application of one replica."""
    app = FastAPI(title="A replica", openapi_url=None, redirect_slashes=False)

    def check(path: str, body: object) -> dict:
        try:
            request = Question.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            raise RequestError(400, f"{'.'.join(map(str, first['loc'])) or 'The request'}: {first['msg']}.") from None
        if request.model != engine.settings.name:
            raise RequestError(404, f"There is no model {request.model!r}. It is {engine.settings.name!r}.")
        return request.model_dump()

    async def chat(model: str, messages: list, body: dict):
        generation = await _start(engine, body)
        return _stream(generation, body) if body["stream"] else await _whole(generation, model)

    app.include_router(
        create_chat_completion_router(
            list_models=lambda: [engine.settings.name],
            run_completion=chat,
            chunk_mapper=attrgetter("text"),
            owned_by="OpenVINO",
        )
    )

    @app.exception_handler(HTTPException)
    async def failed(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    options = {"max_concurrent": MAX_ONGOING, "host": process.LOOPBACK, "limits": Limits()}
    return Guard(app, check, RULES, forward=lambda request: request, **options)


async def _start(engine: Engine, request: dict) -> Generation:
    ids = await start.encode(engine, request["messages"])
    if ids.shape[1] + request["max_tokens"] > engine.context:
        raise RequestError(
            400,
            f"The prompt has {ids.shape[1]} tokens and max_tokens is {request['max_tokens']}; together they may be "
            f"{engine.context}.",
        )
    config = engine.config()
    config.max_new_tokens, config.ignore_eos = request["max_tokens"], request["ignore_eos"]
    config.temperature, config.do_sample = request["temperature"] or 1.0, request["temperature"] > 0
    return start.submit(engine, ids, config)


async def _stream(generation: Generation, request: dict) -> AsyncIterator[Piece | ChatCompletion]:
    piece = None
    while piece is None or piece.finish_reason is None:
        piece = await generation.read()
        yield piece
    if request["stream_options"]["include_usage"]:
        yield _reply("chat.completion.chunk", request["model"], [], _usage(generation))
    yield Done.model_construct()


async def _whole(generation: Generation, model: str) -> ChatCompletion:
    pieces = [await generation.read()]
    while pieces[-1].finish_reason is None:
        pieces.append(await generation.read())
    message = Message(role="assistant", content="".join(piece.text for piece in pieces))
    choice = Choice(index=0, message=message, finish_reason=pieces[-1].finish_reason)
    return _reply("chat.completion", model, [choice], _usage(generation))


def _reply(kind: str, model: str, choices: list[Choice], usage: dict[str, int]) -> ChatCompletion:
    about = {"id": f"{model}-{uuid.uuid4()}", "object": kind, "created": int(time.time()), "model": model}
    return ChatCompletion(**about, choices=choices, usage=usage)


def _usage(generation: Generation) -> dict[str, int]:
    prompt, answer = generation.prompt_tokens, generation.tokens
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


# --- Ray Serve ------------------------------------------------------------------------------------------------


@serve.deployment(
    ray_actor_options={"num_cpus": CPUS},
    max_ongoing_requests=MAX_ONGOING,
    max_queued_requests=128,  # for all replicas together; further ones get 503
    max_surge_percent=50,  # a rolling restart starts new replicas before it ends old ones
    graceful_shutdown_wait_loop_s=0.5,  # how often an old replica looks whether its requests have ended,
    graceful_shutdown_timeout_s=120,  # and how long at most
)
@serve.ingress()
class Replica:
    """A process with an engine of its own. Raises RuntimeError where the model cannot be loaded."""

    def __init__(self, settings: Settings) -> None:
        self.engine = Engine(settings)
        self.engine.start()
        self.engine.loaded.wait()
        self.check_health()

    def __serve_build_asgi_app__(self) -> Guard:
        return create_app(self.engine)

    def check_health(self) -> None:
        """Raise RuntimeError if no request can be answered; Serve then replaces this replica."""
        if self.engine.problem:
            raise RuntimeError(self.engine.problem)

    def __del__(self) -> None:
        self.engine.close(drain=True)


def listen(port: int = 0) -> str:
    """Let Serve listen on 127.0.0.1; returns the URL. port 0: a free one."""
    with process.listen(process.LOOPBACK, port) as free:
        port, url = free.getsockname()[1], process.address(free)
    serve.start(http_options={"host": process.LOOPBACK, "port": port})
    return url


def autoscaled(least: int, most: int, target: float = 4.0, patience_s: float = 10.0) -> serve.Deployment:
    """`Replica` in a number that follows the load, so that each has about `target` requests at a time.

    patience_s: how long the load must be larger before a replica is added; ten times as long before one is removed.
    """
    config = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": target}
    config |= {"upscale_delay_s": patience_s, "downscale_delay_s": 10 * patience_s, "look_back_period_s": patience_s}
    return Replica.options(num_replicas="auto", autoscaling_config=config)
