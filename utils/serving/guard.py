"""ASGI middleware before the endpoints: authorization, limits of size and number, and disconnected clients.

A request that is rejected by its headers is rejected before its body is parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi.responses import JSONResponse

from notebooks.deepseek_serving.server.parsing import Limits, RequestError

GENERATION_PATHS = {f"/{version}/{kind}" for version in ("v1", "v3") for kind in ("chat/completions", "completions")}
PUBLIC_PATHS = {"/v2/health/live", "/v2/health/ready"}  # answered without an API key
CLOSE_CONNECTION = {"Connection": "close"}
DRAIN_S = 2.0  # how long the body of a rejected request is read and discarded
LOOPBACK = {"127.0.0.1", "localhost", "[::1]", "::1"}


@dataclass
class Job:
    """An accepted request in the form of `parsing.parse`, and the generations to abort when it ends."""

    request: dict
    generations: list = field(default_factory=list)


job: contextvars.ContextVar[Job] = contextvars.ContextVar("job")


class Guard:
    """Rejects invalid requests before `app` sees them, and aborts the generations of disconnected clients.

    check(body, chat=...): parses the JSON of a request; `app` finds the result in `job`. It may raise RequestError.
    max_concurrent: generation requests in flight; further ones get 503 with Retry-After. On a loopback `host` only
    requests addressed to loopback are answered: a web page cannot reach the server under a host name of its own.
    `in_flight` counts the requests that are being answered, `refused` those that got 503.
    """

    def __init__(
        self, app, check: Callable[..., dict], *, max_concurrent: int, host: str, api_key: str | None, limits: Limits
    ) -> None:
        self.app, self.check, self.max_concurrent, self.limits = app, check, max_concurrent, limits
        self.local = host in LOOPBACK
        self.authorization = None if api_key is None else f"Bearer {api_key}".encode()
        self.in_flight = self.refused = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        unread = True

        async def reading() -> dict:
            nonlocal unread
            message = await receive()
            unread = message["type"] == "http.request" and message.get("more_body", False)
            return message

        try:
            self._check_sender(scope)
            if scope["method"] == "POST" and scope["path"] in GENERATION_PATHS:
                await self._generate(scope, reading, send)
            else:
                await self.app(scope, reading, send)
        except RequestError as error:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    while unread:  # a client that is still sending would miss the reply
                        await reading()
            response = JSONResponse({"error": error.detail}, error.status_code, error.headers)
            await response(scope, receive, send)

    def _check_sender(self, scope) -> None:
        headers = dict(scope["headers"])
        if self.local and headers.get(b"host", b"").decode("latin-1").rsplit(":", 1)[0] not in LOOPBACK:
            raise RequestError(403, "This server answers only requests addressed to 127.0.0.1 or localhost.")
        if self.authorization is not None and scope["path"] not in PUBLIC_PATHS:
            if not hmac.compare_digest(headers.get(b"authorization", b""), self.authorization):
                raise RequestError(401, "The API key is missing or wrong.", {"WWW-Authenticate": "Bearer"})

    async def _generate(self, scope, receive, send) -> None:
        if self.in_flight >= self.max_concurrent:
            self.refused += 1
            raise RequestError(
                503, "Too many requests are waiting; try again.", {"Retry-After": str(self.limits.retry_after_s)}
            )
        self.in_flight += 1
        current = Job({})
        try:
            current.request = self.check(await self._json(scope, receive), chat="/chat/" in scope["path"])
            job.set(current)
            await self._until_gone(scope, current, receive, send)
        finally:
            self.in_flight -= 1
            for generation in current.generations:
                generation.abort()

    async def _json(self, scope, receive):
        """The JSON body of a request. Raises RequestError for one that is too large, too slow, too deep or invalid."""
        headers = dict(scope["headers"])
        if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            raise RequestError(415, "Content-Type must be application/json")
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self.limits.upload_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(400, "The client went away.")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self.limits.body:
                        raise RequestError(
                            413, f"The request is larger than {self.limits.body} bytes.", CLOSE_CONNECTION
                        )
        except TimeoutError:
            raise RequestError(408, "The request took too long to arrive.", CLOSE_CONNECTION) from None
        try:
            value = json.loads(body)
        except RecursionError:
            raise RequestError(400, self._too_deep()) from None
        except ValueError:
            raise RequestError(412, "Cannot parse JSON body") from None
        level = [value]
        for _ in range(self.limits.depth):
            level = [inner for outer in level for inner in _members(outer)]
        if level:
            raise RequestError(400, self._too_deep())
        return value

    def _too_deep(self) -> str:
        return f"The JSON body is nested deeper than {self.limits.depth} levels."

    async def _until_gone(self, scope, current: Job, receive, send) -> None:
        """Run the app, and cancel it when the client disconnects. The app gets the fields that its router reads."""
        body = json.dumps({key: current.request[key] for key in ("model", "messages", "stream")}).encode()
        gone, unread = asyncio.Event(), [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> dict:
            if unread:
                return unread.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()

        tasks = [asyncio.ensure_future(self.app(scope, replay, send)), asyncio.ensure_future(watch())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()  # has no effect on a task that is done
            with contextlib.suppress(asyncio.CancelledError):
                await tasks[0]


def _members(value) -> list:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
