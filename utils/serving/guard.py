"""ASGI middleware before the endpoints: authorization, limits of size and number, and disconnected clients.

A request that is rejected by its headers is rejected before its body is parsed. Errors are {"error": message}.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hmac
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fastapi import HTTPException
from fastapi.responses import JSONResponse

CLOSE_CONNECTION = {"Connection": "close"}
DRAIN_S = 2.0  # how long the body of a rejected request is read and discarded
LOOPBACK = {"127.0.0.1", "localhost", "[::1]", "::1"}


class RequestError(HTTPException):
    """A request that cannot be answered: HTTP status and error message."""


@dataclass(frozen=True)
class Limits:
    """Limits of requests. A request beyond one of them gets an error."""

    waiting: int = 128  # requests beyond those in the batch; further ones get 503
    body: int = 2**20  # bytes
    depth: int = 16  # levels of nested JSON
    upload_s: float = 20.0  # time in which the whole body must arrive
    retry_after_s: int = 1


@dataclass(frozen=True)
class Rules:
    """Which requests are checked, and how.

    counted: paths whose requests take part in the limit of concurrent requests; they end when their client leaves.
    parsed: further paths whose JSON is checked. public: paths that are answered without an API key. json_only: whether
    the Content-Type must be application/json. bad_json: the status for a body that is no JSON.
    """

    counted: Collection[str]
    parsed: Collection[str] = ()
    public: Collection[str] = ()
    json_only: bool = True
    bad_json: int = 400


@dataclass
class Job:
    """An accepted request in the form of the guard's `check`, and the generations to abort when it ends."""

    request: dict
    generations: list = field(default_factory=list)


job: contextvars.ContextVar[Job] = contextvars.ContextVar("job")


class Guard:
    """Rejects invalid requests before `app` sees them, and aborts the generations of disconnected clients.

    check(path, body): parses the JSON of a request; `app` finds the result in `job`. It may raise RequestError.
    forward(request): the JSON that `app` reads as the body; by default it gets an empty object.
    max_concurrent: counted requests in flight; further ones get 503 with Retry-After. On a loopback `host` only
    requests addressed to loopback are answered, and none that a web page of another origin sends: a page cannot reach
    the server, not even under a host name of its own. `in_flight` counts the requests that are being answered,
    `refused` those that got 503.
    """

    def __init__(
        self,
        app,
        check: Callable[[str, object], dict],
        rules: Rules,
        *,
        max_concurrent: int,
        host: str,
        api_key: str | None = None,
        limits: Limits | None = None,
        forward: Callable[[dict], dict] = lambda request: {},
    ) -> None:
        self.app, self.check, self.rules, self.forward = app, check, rules, forward
        self.max_concurrent, self.limits = max_concurrent, limits or Limits()
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
            if scope["method"] == "POST" and scope["path"] in self.rules.counted:
                await self._counted(scope, reading, send)
            elif scope["method"] in ("POST", "DELETE") and scope["path"] in self.rules.parsed:
                await self._checked(scope, reading, send)
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
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if self.local and headers.get(b"host", "").rsplit(":", 1)[0] not in LOOPBACK:
            raise RequestError(403, "This server answers only requests addressed to 127.0.0.1 or localhost.")
        if self.local and b"origin" in headers and not _is_local(headers[b"origin"]):
            raise RequestError(403, "This server answers no requests of web pages from other machines.")
        if self.authorization is not None and scope["path"] not in self.rules.public:
            given = headers.get(b"authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self.authorization):
                raise RequestError(401, "The API key is missing or wrong.", {"WWW-Authenticate": "Bearer"})

    async def _counted(self, scope, receive, send) -> None:
        if self.in_flight >= self.max_concurrent:
            self.refused += 1
            raise RequestError(
                503, "Too many requests are waiting; try again.", {"Retry-After": str(self.limits.retry_after_s)}
            )
        self.in_flight += 1
        try:
            await self._checked(scope, receive, send)
        finally:
            self.in_flight -= 1

    async def _checked(self, scope, receive, send) -> None:
        current = Job({})
        try:
            current.request = self.check(scope["path"], await self._json(scope, receive))
            job.set(current)
            await self._until_gone(scope, current, receive, send)
        finally:
            for generation in current.generations:
                generation.abort()

    async def _json(self, scope, receive):
        """The JSON body of a request. Raises RequestError for one that is too large, too slow, too deep or invalid."""
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if self.rules.json_only and kind != b"application/json":
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
            raise RequestError(self.rules.bad_json, "Cannot parse JSON body") from None
        level = [value]
        for _ in range(self.limits.depth):
            level = [inner for outer in level for inner in _members(outer)]
        if level:
            raise RequestError(400, self._too_deep())
        return value

    def _too_deep(self) -> str:
        return f"The JSON body is nested deeper than {self.limits.depth} levels."

    async def _until_gone(self, scope, current: Job, receive, send) -> None:
        """Run the app, and cancel it when the client disconnects."""
        body = json.dumps(self.forward(current.request)).encode()
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


def _is_local(origin: str) -> bool:
    """Whether a page of this origin comes from this machine."""
    try:
        return urlsplit(origin).hostname in LOOPBACK
    except ValueError:
        return False


def _members(value) -> list:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
