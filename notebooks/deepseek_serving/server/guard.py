"""The gate before the endpoints: who may ask, how much at once, how large; and it notices clients that vanish.

An ASGI middleware. Everything that is refused here costs no more than the headers of the request.
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

from notebooks.deepseek_serving.server.parsing import Limits, Refused

GENERATING = {f"/{version}/{kind}" for version in ("v1", "v3") for kind in ("chat/completions", "completions")}
OPEN = {"/v2/health/live", "/v2/health/ready"}  # no key wanted
CLOSE = {"Connection": "close"}
DRAIN_S = 2.0  # for which a refused body is read on, and thrown away
LOOPBACK = {"127.0.0.1", "localhost", "[::1]", "::1"}


@dataclass
class Job:
    """A request that was let in: what it asks for, and the generations that end with it."""

    asked: dict
    generations: list = field(default_factory=list)


job: contextvars.ContextVar[Job] = contextvars.ContextVar("job")


class Guard:
    """Answers what `app` should not see, counts what it is computing (`in_flight`), and ends abandoned work.

    check: reads the JSON of a request, chat or not, into what `app` finds in `job`; may raise Refused. at_once:
    requests that are let in to generate; more get 503 with Retry-After. On a loopback `host` only requests
    addressed to loopback are answered, so that no web page can reach the server under a name of its own.
    """

    def __init__(
        self, app, check: Callable[..., dict], *, at_once: int, host: str, api_key: str | None, limits: Limits
    ) -> None:
        self.app, self.check, self.at_once, self.limits = app, check, at_once, limits
        self.local = host in LOOPBACK
        self.expected = None if api_key is None else f"Bearer {api_key}".encode()
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
            if scope["method"] == "POST" and scope["path"] in GENERATING:
                await self._generate(scope, reading, send)
            else:
                await self.app(scope, reading, send)
        except Refused as refused:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    while unread:  # a client that is still sending would not see the reply
                        await reading()
            response = JSONResponse({"error": refused.detail}, refused.status_code, refused.headers)
            await response(scope, receive, send)

    def _check_sender(self, scope) -> None:
        headers = dict(scope["headers"])
        if self.local and headers.get(b"host", b"").decode("latin-1").rsplit(":", 1)[0] not in LOOPBACK:
            raise Refused(403, "This server answers only requests addressed to 127.0.0.1 or localhost.")
        if self.expected is not None and scope["path"] not in OPEN:
            if not hmac.compare_digest(headers.get(b"authorization", b""), self.expected):
                raise Refused(401, "The API key is missing or wrong.", {"WWW-Authenticate": "Bearer"})

    async def _generate(self, scope, receive, send) -> None:
        if self.in_flight >= self.at_once:
            self.refused += 1
            raise Refused(
                503, "Too many requests are waiting; try again.", {"Retry-After": str(self.limits.retry_after_s)}
            )
        self.in_flight += 1
        mine = Job({})
        try:
            mine.asked = self.check(await self._json(scope, receive), chat="/chat/" in scope["path"])
            job.set(mine)
            await self._until_gone(scope, mine, receive, send)
        finally:
            self.in_flight -= 1
            for generation in mine.generations:
                generation.abort()

    async def _json(self, scope, receive):
        """The JSON that was sent. Raises Refused where it is too large, too slow, too deep, or no JSON."""
        headers = dict(scope["headers"])
        if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            raise Refused(415, "Content-Type must be application/json")
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self.limits.upload_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "The client went away.")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self.limits.body:
                        raise Refused(413, f"The request is larger than {self.limits.body} bytes.", CLOSE)
        except TimeoutError:
            raise Refused(408, "The request took too long to arrive.", CLOSE) from None
        try:
            value = json.loads(body)
        except RecursionError:
            raise Refused(400, self._too_deep()) from None
        except ValueError:
            raise Refused(412, "Cannot parse JSON body") from None
        level = [value]
        for _ in range(self.limits.depth):
            level = [inner for outer in level for inner in _members(outer)]
        if level:
            raise Refused(400, self._too_deep())
        return value

    def _too_deep(self) -> str:
        return f"The JSON body is nested deeper than {self.limits.depth} levels."

    async def _until_gone(self, scope, mine: Job, receive, send) -> None:
        """Run the app, and cancel it when the client has gone. Of the body it gets what the router asks for."""
        body = json.dumps({key: mine.asked[key] for key in ("model", "messages", "stream")}).encode()
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
                task.cancel()  # of no effect on the one that is done
            with contextlib.suppress(asyncio.CancelledError):
                await tasks[0]


def _members(value) -> list:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
