"""Continuous batching in a thread: requests come from an asyncio loop, pieces of text go back to it.

One thread owns the pipeline: between two steps it takes in new requests and drops abandoned ones, after each
step it hands all new text to the loop in a single call. A request's text is made of its tokens' bytes, so no
character is ever cut in two and nothing is decoded twice.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from notebooks.deepseek_serving.server.repository import Repository

STALLED_S = 60.0  # a step takes milliseconds to a few seconds
SAMPLE = "Naïve  café — “quotes”, 日本語, 👩‍🚀 's n't .\n\tx"  # spaces before punctuation, characters of several tokens
STOPPING = "The server is stopping."
log = logging.getLogger("deepseek_serving")


class EngineFailed(RuntimeError):
    """The request cannot be answered any more; the message says why."""


class Piece(NamedTuple):
    """What one step, or several, added to an answer. `tokens` counts all tokens so far."""

    text: str
    tokens: int
    finish_reason: str | None  # "stop", "length", or None while it goes on


class Generation:
    """One request's answer while it grows. `read` and `abort` belong to the loop that made it."""

    def __init__(self, engine: Engine, ids, config) -> None:
        self.engine, self.ids, self.config = engine, ids, config
        self.loop = asyncio.get_running_loop()
        self.prompt_tokens = ids.shape[1]
        self.tokens = 0
        self.done = False  # nothing more will be delivered
        self.handle = None  # the pipeline's; this and `decoder` belong to the engine's thread
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pieces: deque[Piece | Exception] = deque()
        self._news: asyncio.Future | None = None

    def deliver(self, piece: Piece | Exception) -> None:
        if self.done:
            return
        self.done = isinstance(piece, Exception) or piece.finish_reason is not None
        self._pieces.append(piece)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def read(self) -> Piece:
        """Everything that has come since the last call, waiting for it. Raises EngineFailed."""
        if not self._pieces:
            self._news = self.loop.create_future()
            await self._news
        pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
        if isinstance(pieces[-1], Exception):
            raise pieces[-1]
        if len(pieces) == 1:
            return pieces[0]
        return Piece("".join(piece.text for piece in pieces), *pieces[-1][1:])

    def abort(self) -> None:
        """Stop computing; harmless when the answer is complete."""
        if not self.done:
            self.done = True
            self.engine.abandon(self)


class Engine:
    """A model of a repository, computing for everybody at once. `start` loads it in the background."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.failure: str | None = None
        self.loaded = threading.Event()  # or failed
        self.generated = self.prompted = self.finished = self.aborted = self.steps = 0
        self.waiting = self.running = 0  # as of the last step
        self.cache_percent = 0.0
        self.cache_bytes = 0
        self._news = threading.Condition()
        self._arrivals: deque[Generation] = deque()
        self._departures: deque[Generation] = deque()
        self._active: dict[int, Generation] = {}
        self._closing = self._draining = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, *, drain: bool = False) -> None:
        """End the thread, after the answers that are under way (`drain`), or at once: then who waits is told so."""
        with self._news:
            self._draining, self._closing = drain, not drain
            self._news.notify()
        self._thread.join()

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
        """Tokens that prompt and answer may have together."""
        return self.repository.context

    def config(self):
        """A generation config of the request's own, with the model's defaults."""
        return self._pipeline.get_config()

    def encode(self, messages: list[dict] | None, prompt: str | None):
        """Token ids [1, n] of a chat in the model's template, or of a plain prompt. Any thread may call it."""
        if messages is not None:
            prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return self._tokenizer.encode(prompt, add_special_tokens=messages is None).input_ids

    def submit(self, ids, config) -> Generation:
        """Start computing an answer. Call it in the event loop that will read it. Raises EngineFailed."""
        if self.problem:
            raise EngineFailed(self.problem)
        generation = Generation(self, ids, config)
        with self._news:
            self._arrivals.append(generation)
            self._news.notify()
        return generation

    def abandon(self, generation: Generation) -> None:
        with self._news:
            self._departures.append(generation)
            self._news.notify()

    # --- the engine's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._load()
            self.loaded.set()
            while self._wait_for_work():
                self._take_in_and_drop()
                self._busy_since = time.monotonic()
                if self._pipeline.has_non_finished_requests():
                    self._pipeline.step()
                    self.steps += 1
                self._hand_over()
                self._busy_since = None
            self.failure = STOPPING
        except BaseException as error:  # whatever it is, nobody may be left waiting
            log.exception("The engine has failed")
            self.failure = f"The engine has failed: {str(error).strip() or type(error).__name__}"
        finally:
            self.loaded.set()
            with self._news:
                left = [*self._active.values(), *self._arrivals]
                self._arrivals.clear()
                self._active.clear()
            self.running = self.waiting = 0
            _deliver([(generation, EngineFailed(self.failure)) for generation in left])

    def _load(self) -> None:
        import openvino_genai

        options = self.repository.options
        scheduler = openvino_genai.SchedulerConfig()
        for name in ("cache_size", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching"):
            setattr(scheduler, name, getattr(options, name))
        started = time.monotonic()
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            self.repository.model, scheduler, options.device, options.plugin_config
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        self._bytes = token_bytes(self._tokenizer, self.repository.model)
        log.info("Loaded %s in %.1f s", self.repository.name, time.monotonic() - started)

    def _wait_for_work(self) -> bool:
        with self._news:
            while not (self._active or self._arrivals or self._departures or self._closing):
                if self._draining:
                    return False
                self._news.wait()
            return not self._closing

    def _take_in_and_drop(self) -> None:
        while self._departures:
            generation = self._departures.popleft()
            self.aborted += 1
            if generation.handle is not None:
                generation.handle.cancel()
                self._active.pop(id(generation), None)
        while self._arrivals:
            generation = self._arrivals.popleft()
            if generation.done:
                continue
            try:
                generation.handle = self._pipeline.add_request(id(generation), generation.ids, generation.config)
            except Exception as error:  # this request's own fault
                _deliver([(generation, EngineFailed(f"The request was refused: {str(error).strip()}"))])
                continue
            self._active[id(generation)] = generation
            self.prompted += generation.prompt_tokens

    def _hand_over(self) -> None:
        """Collect what the step brought, and give it to the loop in one call."""
        news, running = [], 0
        for key, generation in list(self._active.items()):
            handle = generation.handle
            if handle.can_read():
                ids, reason = [], None
                while handle.can_read():
                    output = handle.read()[0]
                    ids += output.generated_ids
                    reason = output.finish_reason.name
                news.append((generation, self._piece(generation, ids, reason)))
                finished = reason != "NONE"
            else:
                finished = handle.get_status().name != "RUNNING"
                if finished:
                    sentence = "The prompt does not fit the KV cache: shorten it, or raise cache_size."
                    news.append((generation, EngineFailed(sentence)))
            if finished:
                del self._active[key]
                self.finished += 1
            else:
                running += generation.tokens > 0
        self.running, self.waiting = running, len(self._active) - running
        metrics = self._pipeline.get_metrics()
        self.cache_percent, self.cache_bytes = metrics.cache_usage, metrics.kv_cache_size_in_bytes
        _deliver(news)

    def _piece(self, generation: Generation, ids: list[int], reason: str) -> Piece:
        generation.tokens += len(ids)
        self.generated += len(ids)
        finish_reason = None if reason == "NONE" else reason.lower()
        data = b"".join([self._bytes.get(token, b"") for token in ids])
        text = generation.decoder.decode(data, final=finish_reason is not None)
        return Piece(text, generation.tokens, finish_reason)


def _deliver(news: list[tuple[Generation, Piece | Exception]]) -> None:
    """Hand over to each loop at once; a loop that is closed has nobody left to tell."""
    by_loop: dict[asyncio.AbstractEventLoop, list] = {}
    for generation, piece in news:
        by_loop.setdefault(generation.loop, []).append((generation, piece))
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver_all, items)
        except RuntimeError:
            pass


def _deliver_all(items: list[tuple[Generation, Piece | Exception]]) -> None:
    for generation, piece in items:
        generation.deliver(piece)


def token_bytes(tokenizer, model: Path | str) -> dict[int, bytes]:
    """The bytes that each token adds to a text; special tokens add none.

    Decoding is then a look-up. It is exact for byte-level tokenizers (GPT-2, Llama 3, Qwen, DeepSeek), which
    is checked against the detokenizer for every token. Raises ValueError for a tokenizer of another kind.
    """
    table = {token: bytes(data) for data, token in tokenizer.get_vocab().items()}
    tokens = sorted(table)
    for token, text in zip(tokens, tokenizer.decode([[token] for token in tokens]), strict=True):
        if not text:
            table[token] = b""
        elif table[token].decode("utf-8", "replace") != text:
            raise ValueError(f"The tokenizer of {model} is not byte-level: token {token} reads {text!r}.")
    ids = tokenizer.encode(SAMPLE, add_special_tokens=False).input_ids.data[0].tolist()
    text = b"".join(table[token] for token in ids).decode()
    if text != tokenizer.decode(ids) or text != SAMPLE:
        raise ValueError(f"The tokenizer of {model} is not byte-level: a text comes back as {text!r}.")
    return table
