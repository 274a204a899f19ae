"""A client of OpenAI-compatible model servers (OpenVINO Model Server, or the local one of this notebook).

It chats, streams, separates thoughts from answers, and cancels. Copy this one file; it needs `httpx` and nothing else.

    with Client("http://127.0.0.1:8000") as client:
        print(client.chat("What is the capital of France?", max_tokens=64).answer)
        for reasoning, answer in client.stream("And of Italy?", max_tokens=64):
            print(answer, end="", flush=True)
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

OPEN, CLOSE = "<think>", "</think>"


class ServerError(RuntimeError):
    """The server rejected the request, failed or disconnected; the message says which.

    status: of the HTTP reply, 0 for none. retry_after: seconds that a busy server asks to wait, or None.
    """

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class Delta(NamedTuple):
    """The text that a piece of a stream adds to the thoughts and to the answer."""

    reasoning: str = ""
    answer: str = ""


@dataclass
class Reply:
    """A whole reply. Times are in seconds since the request was sent; token counts are the server's or None."""

    reasoning: str = ""
    answer: str = ""
    finish_reason: str | None = None  # "stop": complete; "length": max_tokens reached; None: interrupted
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_token_s: float | None = None  # only for streams
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """For a stream: the tokens after the first over the time after the first; else all tokens over all time."""
        if not self.completion_tokens or self.completion_tokens < 2 or self.first_token_s is None:
            return self.completion_tokens / self.seconds if self.completion_tokens and self.seconds else None
        decoding_s = self.seconds - self.first_token_s
        return (self.completion_tokens - 1) / decoding_s if decoding_s > 0 else None


class ReasoningSplitter:
    """Splits `<think>thoughts</think>answer` while it is streamed, wherever the text is cut into pieces.

    inside: whether the text begins within the thoughts, because the chat template ends with `<think>` (DeepSeek-R1 and
    its distillations). A `<think>` at the beginning of such a text is removed. Only the first `<think>` and the first
    `</think>` count; later tags are part of the answer. White space around the thoughts is removed.
    """

    def __init__(self, inside: bool = False) -> None:
        self.inside = inside
        self._part = "start"  # then "thoughts" (if there are any), then "answer"
        self._has_text = False  # whether this part has had anything but white space
        self._pending = ""  # text that may be the beginning of a tag, or the white space before one

    def feed(self, piece: str) -> Delta:
        """Add a piece of text; returns all text whose part is certain by now."""
        self._pending += piece
        if self._part == "start":
            self._begin()
        reasoning = self._thoughts() if self._part == "thoughts" else ""
        return Delta(reasoning, self._answer() if self._part == "answer" else "")

    def finish(self) -> Delta:
        """The pending text at the end of the stream."""
        pending, self._pending = self._pending, ""
        if self._part == "answer" or (self._part == "start" and not self.inside):
            return Delta(answer=pending)
        return Delta(reasoning=pending.rstrip() if self._has_text else pending.strip())

    def _begin(self) -> None:
        """Decide which part is first, as soon as that is certain."""
        text = self._pending.lstrip()
        if text.startswith(OPEN):
            self._part, self._pending = "thoughts", text[len(OPEN) :]
        elif text and not OPEN.startswith(text):
            self._part = "thoughts" if self.inside else "answer"
            self._has_text = not self.inside  # without thoughts, an answer keeps its white space

    def _thoughts(self) -> str:
        text, tag, rest = self._pending.partition(CLOSE)
        if not tag:
            length = _certain_length(text)
            text, rest = text[:length], text[length:]
        text = text.rstrip() if self._has_text else text.strip()
        self._pending = rest
        if tag:
            self._part, self._has_text = "answer", False
        else:
            self._has_text = self._has_text or bool(text)
        return text

    def _answer(self) -> str:
        text, self._pending = self._pending if self._has_text else self._pending.lstrip(), ""
        self._has_text = self._has_text or bool(text)
        return text


def _certain_length(text: str) -> int:
    """The number of characters that are thoughts even if the rest is white space and the beginning of a closing tag."""
    tag = next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)
    return len(text[: len(text) - tag].rstrip())


def split_reasoning(text: str, inside: bool = False) -> Delta:
    """(thoughts, answer) of a whole text; see ReasoningSplitter."""
    splitter = ReasoningSplitter(inside)
    first, last = splitter.feed(text), splitter.finish()
    return Delta(first.reasoning + last.reasoning, first.answer + last.answer)


class Stream:
    """An iterator over the Deltas of an answer. `reply` holds what has arrived so far.

    `close()` ends the answer. Another thread may call it while one waits for the next piece. It closes the connection,
    on which the server stops generating.
    """

    def __init__(self, response: httpx.Response, url: str, inside: bool, sent: float) -> None:
        self.reply, self.closed = Reply(), False
        self._response, self._url, self._sent = response, url, sent
        self._splitter, self._done, self._deltas = ReasoningSplitter(inside), False, self._read()

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        return next(self._deltas)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        """Stop the answer; `reply` keeps what has arrived."""
        if not (self.closed or self._done):
            self.closed = True
            if network := self._response.extensions.get("network_stream"):
                with suppress(OSError):  # shutdown wakes a thread that waits for data; close alone does not
                    network.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            with suppress(httpx.HTTPError, RuntimeError, OSError):
                self._response.close()

    def _read(self) -> Iterator[Delta]:
        try:
            for event in self._events():
                yield from self._take(event)
            if self.closed:
                return
            if not self._done and self.reply.finish_reason is None:
                raise self._disconnected()
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            if self.closed:  # here or in another thread
                return
            raise self._disconnected(error) from error
        finally:
            self._done = True
            self._response.close()
        if any(last := self._splitter.finish()):
            yield self._add(last)

    def _events(self) -> Iterator[dict]:
        """The server-sent events up to [DONE]. Lines end with a line feed only: JSON may hold U+2028 and the like."""
        rest = b""  # of the last line
        for data in self._response.iter_bytes():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    content = line[5:].strip()
                    if content == b"[DONE]":
                        self._done = True
                        return
                    yield _parsed(content, self._url)

    def _take(self, event: dict) -> Iterator[Delta]:
        if "error" in event:
            raise ServerError(f"The server at {self._url} broke the answer off: {_message(event)}")
        if usage := event.get("usage"):
            self.reply.prompt_tokens = usage.get("prompt_tokens")
            self.reply.completion_tokens = usage.get("completion_tokens")
        for choice in (event.get("choices") or [])[:1]:
            delta = choice.get("delta") or {}
            self.reply.finish_reason = choice.get("finish_reason") or self.reply.finish_reason
            thoughts, text = delta.get("reasoning_content") or "", delta.get("content") or ""
            if thoughts:
                self._splitter.inside = False  # this server separates them itself
            if thoughts or text:
                new = self._splitter.feed(text) if text else Delta()
                yield self._add(Delta(thoughts + new.reasoning, new.answer))

    def _add(self, delta: Delta) -> Delta:
        now = perf_counter() - self._sent
        self.reply.seconds = now
        self.reply.first_token_s = self.reply.first_token_s or now
        self.reply.reasoning += delta.reasoning
        self.reply.answer += delta.answer
        return delta

    def _disconnected(self, error: Exception | None = None) -> ServerError:
        if isinstance(error, httpx.TimeoutException):
            return ServerError(f"The server at {self._url} has said nothing for too long. Look at its log; is it busy?")
        characters = len(self.reply.reasoning) + len(self.reply.answer)
        return ServerError(
            f"The server at {self._url} went away in the middle of the answer, after {characters} characters. "
            "Look at its log, start it again, and ask again."
        )


class Client:
    """A client of one server.

    url: its address, such as http://127.0.0.1:8000. Requests go to /v3, or to the path of the URL, such as /v1.
    model: a name of `models()`, by default the first. thinks: whether the model's chat template ends with `<think>`, as
    DeepSeek-R1's does. timeout: seconds without data before an error. Methods raise ServerError, whose message is for
    users.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        *,
        thinks: bool = False,
        timeout: float = 120,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server: it should look like http://127.0.0.1:8000.")
        self.url = url.rstrip("/") + ("" if parts.path.strip("/") else "/v3")
        self.thinks, self._model = thinks, model
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Timeout(timeout, connect=5)
        # A server on this machine is reached without a proxy.
        self._http = httpx.Client(headers=headers, timeout=limits, trust_env=not _is_loopback(parts.hostname))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def models(self) -> list[str]:
        """The names of the models that the server serves."""
        listed = _parsed(self._send("GET", "/models").content, self.url)
        return [entry["id"] for entry in listed.get("data", [])]

    @property
    def model(self) -> str:
        if self._model is None:
            names = self.models()
            if not names:
                raise ServerError(f"The server at {self.url} has no model yet. Wait until it is ready, or see its log.")
            self._model = names[0]
        return self._model

    def chat(self, messages: str | Sequence[dict], **options) -> Reply:
        """The whole reply to a question, or to messages {"role", "content"}.

        options: of the API, such as max_tokens, temperature (0: always the most likely token), seed, stop. In a
        conversation, send earlier answers without their thoughts: models are trained on such histories.
        """
        body, sent = self._body(messages, options), perf_counter()
        reply = _parsed(self._send("POST", "/chat/completions", body).content, self.url)
        choice, usage = (reply.get("choices") or [{}])[0], reply.get("usage") or {}
        message = choice.get("message") or {}
        reasoning, answer = split_reasoning(message.get("content") or "", self._inside(message))
        return Reply(
            (message.get("reasoning_content") or "") + reasoning,
            answer,
            choice.get("finish_reason"),
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            seconds=perf_counter() - sent,
        )

    def stream(self, messages: str | Sequence[dict], **options) -> Stream:
        """Stream the reply; arguments as for `chat`. Close the stream, or leave its `with` block, to stop it."""
        body = self._body(messages, options) | {"stream": True, "stream_options": {"include_usage": True}}
        sent = perf_counter()
        return Stream(self._send("POST", "/chat/completions", body, stream=True), self.url, self.thinks, sent)

    def _inside(self, message: dict) -> bool:
        return self.thinks and not message.get("reasoning_content")  # else the server separates them

    def _body(self, messages: str | Sequence[dict], options: dict) -> dict:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return {"model": self.model, "messages": list(messages)} | options

    def _send(self, method: str, path: str, body: dict | None = None, stream: bool = False) -> httpx.Response:
        try:
            response = self._http.send(self._http.build_request(method, self.url + path, json=body), stream=stream)
            if response.is_error:
                response.read()
        except httpx.ConnectError as error:
            raise ServerError(f"No server answers at {self.url}. Start it, or correct the address.") from error
        except httpx.TimeoutException as error:
            raise ServerError(f"The server at {self.url} has not answered in time. Is it busy? See its log.") from error
        except httpx.HTTPError as error:
            raise ServerError(f"The server at {self.url} went away before it answered: {error}.") from error
        if response.is_success:
            return response
        raise _error_of(response, self.url)


def _error_of(response: httpx.Response, url: str) -> ServerError:
    status, message = response.status_code, response.text.strip()
    with suppress(ValueError):
        message = _message(json.loads(message))
    if status == 503:
        wait = response.headers.get("retry-after", "")
        seconds = float(wait) if wait.isdigit() else None
        again = f" Try again in {wait} seconds." if wait.isdigit() else " Try again later."
        return ServerError(f"The server at {url} is busy: {message or 'no more requests now'}.{again}", status, seconds)
    if status in (401, 403):
        return ServerError(f"The server at {url} wants another API key ({status}): {message}", status)
    who = "refused the request" if status < 500 else "failed"
    return ServerError(f"The server at {url} {who} ({status}): {message[:500] or 'without a reason'}", status)


def _message(body) -> str:
    """The message in the body of an error: {"error": "..."}, {"error": {"message": "..."}} or {"detail": "..."}."""
    error = body.get("error", body.get("detail", body)) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error).strip().rstrip(".")


def _parsed(content: bytes, url: str) -> dict:
    try:
        parsed = json.loads(content)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ServerError(f"What answers at {url} is no model server: it sent {content[:60]!r}.")
    return parsed


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
