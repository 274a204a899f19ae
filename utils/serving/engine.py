"""Continuous batching in a thread: requests come from an asyncio loop, pieces of text go back to it.

One thread owns the pipeline. Between two steps it adds new requests and cancels abandoned ones. After each step it
passes all new text to the loop in a single call. The text of a request is decoded incrementally from the bytes of its
tokens, so that no character is cut in two and no token is decoded twice.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

STALLED_S = 60.0  # a step takes milliseconds to a few seconds
SAMPLE_TEXT = (
    "Naïve  café — “quotes”, 日本語, 👩‍🚀 's n't .\n\tx"  # spaces before punctuation, characters of several tokens
)
STOPPING_MESSAGE = "The server is stopping."
log = logging.getLogger("serving")


@dataclass(frozen=True)
class Settings:
    """What an engine serves, and how.

    name: of the model, in messages. model: an IR folder, or a GGUF file. context: the most tokens that prompt and
    answer may have together. max_num_seqs: requests in a batch; further ones wait. scheduler: values of
    openvino_genai's SchedulerConfig by name, such as cache_size (GB). properties: of the device.
    """

    name: str
    model: Path
    context: int
    device: str = "CPU"
    max_num_seqs: int = 64
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)


class EngineError(RuntimeError):
    """The engine cannot answer a request; the message says why."""


class Piece(NamedTuple):
    """The text that one or more steps added to an answer."""

    text: str
    tokens: int  # of the whole answer so far
    finish_reason: str | None  # "stop", "length", or None while the model generates


class Generation:
    """The answer to one request while it is generated. Call `read` and `abort` in the event loop that created it.

    ids: the prompt's token ids [1, n].
    """

    def __init__(self, engine: Engine, ids, config) -> None:
        self.engine, self.ids, self.config = engine, ids, config
        self.loop = asyncio.get_running_loop()
        self.prompt_tokens = ids.shape[1]
        self.tokens = 0
        self.done = False  # True once no further piece is delivered
        self.handle = None  # of the pipeline; only the engine's thread uses it and `decoder`
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pieces: deque[Piece | Exception] = deque()
        self._arrival: asyncio.Future | None = None  # set when a piece arrives

    def deliver(self, piece: Piece | Exception) -> None:
        """Add a piece, or the error that ends the answer."""
        if self.done:
            return
        self.done = isinstance(piece, Exception) or piece.finish_reason is not None
        self._pieces.append(piece)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def read(self) -> Piece:
        """Wait for new text, and return all that has arrived since the last call. Raises EngineError."""
        if not self._pieces:
            self._arrival = self.loop.create_future()
            await self._arrival
        pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
        if isinstance(pieces[-1], Exception):
            raise pieces[-1]
        if len(pieces) == 1:
            return pieces[0]
        return Piece("".join(piece.text for piece in pieces), *pieces[-1][1:])

    def abort(self) -> None:
        """Stop generating. A complete answer stays as it is."""
        if not self.done:
            self.done = True
            self.engine.cancel(self)


class Engine:
    """Generates the answers to all requests in one batch. `start` loads the model in the background."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.failure: str | None = None
        self.loaded = threading.Event()  # set once the model is loaded, or loading has failed
        self.prompt_tokens = self.generated_tokens = 0
        self.finished = self.aborted = 0  # requests
        self.steps = 0
        self.waiting = self.running = 0  # requests without and with a first token, as of the last step
        self.cache_percent = 0.0
        self.cache_bytes = 0
        self._changed = threading.Condition()
        self._arrivals: deque[Generation] = deque()
        self._cancelled: deque[Generation] = deque()
        self._active: dict[int, Generation] = {}
        self._closing = False  # end now
        self._draining = False  # end after the answers that are being generated
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, *, drain: bool = False) -> None:
        """End the thread: at once, or with `drain` after the answers that are being generated; then free the model.

        Requests that end early raise EngineError.
        """
        with self._changed:
            self._draining, self._closing = drain, not drain
            self._changed.notify()
        self._thread.join()
        self._pipeline = self.tokenizer = None  # now, since requests that have ended may still hold this engine

    @property
    def problem(self) -> str | None:
        """Why no request can be answered now, or None."""
        if self.failure is not None:
            return self.failure
        if not self.loaded.is_set():
            return "The model is still being loaded."
        busy_since = self._busy_since
        if busy_since is not None and time.monotonic() - busy_since > STALLED_S:
            return f"The engine has been in one step for more than {STALLED_S:.0f} seconds."
        return None

    @property
    def context(self) -> int:
        """The most tokens that prompt and answer may have together."""
        return self.settings.context

    def config(self):
        """A new GenerationConfig with the model's defaults."""
        return self._pipeline.get_config()

    def encode(self, messages: list[dict] | None, prompt: str | None):
        """Token ids [1, n] of a chat in the model's template, or of a plain prompt. Any thread may call it."""
        if messages is not None:
            prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return self.tokenizer.encode(prompt, add_special_tokens=messages is None).input_ids

    def submit(self, ids, config) -> Generation:
        """Start generating an answer. Call it in the event loop that will read the answer. Raises EngineError."""
        generation = Generation(self, ids, config)
        with self._changed:  # where the thread empties the queue at its end
            if problem := self.problem:
                raise EngineError(problem)
            self._arrivals.append(generation)
            self._changed.notify()
        return generation

    def cancel(self, generation: Generation) -> None:
        """Stop generating an answer before the next step."""
        with self._changed:
            self._cancelled.append(generation)
            self._changed.notify()

    # --- the engine's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._load()
            self.loaded.set()
            while self._wait_for_work():
                self._add_and_cancel_requests()
                self._busy_since = time.monotonic()
                if self._pipeline.has_non_finished_requests():
                    self._pipeline.step()
                    self.steps += 1
                self._collect_results()
                self._busy_since = None
            self.failure = STOPPING_MESSAGE
        except BaseException as error:  # no request may wait forever, whatever the error is
            log.exception("The engine has failed")
            self.failure = f"The engine has failed: {str(error).strip() or type(error).__name__}"
        finally:
            self.loaded.set()
            with self._changed:
                left = [*self._active.values(), *self._arrivals]
                self._arrivals.clear()
                self._active.clear()
            self.running = self.waiting = 0
            _deliver([(generation, EngineError(self.failure)) for generation in left])

    def _load(self) -> None:
        import openvino_genai

        settings = self.settings
        scheduler = openvino_genai.SchedulerConfig()
        for name, value in (dict(settings.scheduler) | {"max_num_seqs": settings.max_num_seqs}).items():
            setattr(scheduler, name, value)
        started = time.monotonic()
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings.model, scheduler, settings.device, dict(settings.properties)
        )
        self.tokenizer = self._pipeline.get_tokenizer()
        self._bytes = token_bytes(self.tokenizer, settings.model)
        log.info("Loaded %s in %.1f s", settings.name, time.monotonic() - started)

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._active or self._arrivals or self._cancelled or self._closing):
                if self._draining:
                    return False
                self._changed.wait()
            return not self._closing

    def _add_and_cancel_requests(self) -> None:
        while self._cancelled:
            generation = self._cancelled.popleft()
            self.aborted += 1
            if generation.handle is not None:
                generation.handle.cancel()
                self._active.pop(id(generation), None)
        # openvino_genai keeps to max_num_seqs only without `dynamic_split_fuse`, which lets prompts share steps.
        while self._arrivals and len(self._active) < self.settings.max_num_seqs:
            generation = self._arrivals.popleft()
            if generation.done:
                continue
            try:
                generation.handle = self._pipeline.add_request(id(generation), generation.ids, generation.config)
            except Exception as error:  # the request is invalid; the engine goes on
                _deliver([(generation, EngineError(f"The request was refused: {str(error).strip()}"))])
                continue
            self._active[id(generation)] = generation
            self.prompt_tokens += generation.prompt_tokens

    def _collect_results(self) -> None:
        """Collect the tokens of the last step, and pass them to the loop in one call."""
        pieces, running = [], 0
        for key, generation in list(self._active.items()):
            handle = generation.handle
            if handle.can_read():
                ids, reason = [], None
                while handle.can_read():
                    output = handle.read()[0]
                    ids += output.generated_ids
                    reason = output.finish_reason.name
                pieces.append((generation, self._piece(generation, ids, reason)))
                finished = reason != "NONE"
            else:
                finished = handle.get_status().name != "RUNNING"
                if finished:
                    message = "The prompt does not fit the KV cache: shorten it, or raise cache_size."
                    pieces.append((generation, EngineError(message)))
            if finished:
                del self._active[key]
                self.finished += 1
            else:
                running += generation.tokens > 0
        self.running, self.waiting = running, len(self._active) - running + len(self._arrivals)
        metrics = self._pipeline.get_metrics()
        self.cache_percent, self.cache_bytes = metrics.cache_usage, metrics.kv_cache_size_in_bytes
        _deliver(pieces)

    def _piece(self, generation: Generation, ids: list[int], reason: str) -> Piece:
        generation.tokens += len(ids)
        self.generated_tokens += len(ids)
        finish_reason = None if reason == "NONE" else reason.lower()
        data = b"".join([self._bytes.get(token, b"") for token in ids])
        text = generation.decoder.decode(data, final=finish_reason is not None)
        return Piece(text, generation.tokens, finish_reason)


def _deliver(pieces: list[tuple[Generation, Piece | Exception]]) -> None:
    """Pass the pieces to the event loops of their requests, with one call for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list] = {}
    for generation, piece in pieces:
        by_loop.setdefault(generation.loop, []).append((generation, piece))
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver_all, items)
        except RuntimeError:  # the loop is closed, so nobody waits for the answer
            pass


def _deliver_all(items: list[tuple[Generation, Piece | Exception]]) -> None:
    for generation, piece in items:
        generation.deliver(piece)


def token_bytes(tokenizer, model: Path | str) -> dict[int, bytes]:
    """The bytes that each token adds to a text, by token id; special tokens add none.

    With this table, decoding is a look-up. It is exact for byte-level tokenizers (GPT-2, Llama 3, Qwen, DeepSeek).
    Every token is checked against the detokenizer, which replaces the bytes of incomplete characters, or, for GGUF
    files, leaves them out. Raises ValueError for a tokenizer that is not byte-level.
    """
    table = {token: bytes(data) for data, token in tokenizer.get_vocab().items()}
    tokens = sorted(table)
    for token, text in zip(tokens, tokenizer.decode([[token] for token in tokens]), strict=True):
        shown = {table[token].decode("utf-8", errors) for errors in ("replace", "ignore")}
        if not text and text not in shown:  # a special token
            table[token] = b""
        elif text not in shown:
            raise ValueError(f"The tokenizer of {model} is not byte-level: token {token} reads {text!r}.")
    ids = tokenizer.encode(SAMPLE_TEXT, add_special_tokens=False).input_ids.data[0].tolist()
    text = b"".join(table[token] for token in ids).decode()
    if text != tokenizer.decode(ids) or text != SAMPLE_TEXT:
        raise ValueError(f"The tokenizer of {model} is not byte-level: a text comes back as {text!r}.")
    return table
