"""A fake pipeline behind the real engine, and the application of a server in a thread.

Tests decide its answers, its speed and its failures. Its tokens are single bytes, which is the hardest case for a text
that is sent in pieces.
"""

import contextlib
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import uvicorn

from utils.serving import engine

EOS = 256
http = httpx.Client(verify=False, trust_env=False, timeout=60)  # creating a client takes longer than most requests


def settings(max_num_seqs: int = 2, context: int = 1000) -> engine.Settings:
    """Of an engine without a model."""
    return engine.Settings("toy", Path("toy"), context, max_num_seqs=max_num_seqs)


class Tokenizer:
    """Byte-level: token i is the byte i; EOS is special."""

    chat_template = ""

    def get_vocab(self) -> dict[bytes, int]:
        return {bytes([i]): i for i in range(256)} | {b"<end>": EOS}

    def encode(self, text: str, add_special_tokens: bool):
        return SimpleNamespace(input_ids=Ids(np.frombuffer(text.encode(), np.uint8).astype(np.int64)[None]))

    def decode(self, ids):
        if ids and isinstance(ids[0], list):
            return [self.decode(one) for one in ids]
        return bytes(i for i in ids if i != EOS).decode("utf-8", "replace")

    def apply_chat_template(self, messages: list[dict], add_generation_prompt: bool, extra_context: dict | None = None):
        if any(message["role"] == "refuse" for message in messages):
            raise RuntimeError("the template raised: unknown role")
        return "".join(f"{message['content']}" for message in messages)


class Ids:
    """The attributes of openvino.Tensor that the engine uses."""

    def __init__(self, data: np.ndarray) -> None:
        self.data, self.shape = data, data.shape


class Handle:
    def __init__(self, answer: bytes, limit: int) -> None:
        self.left = [*answer, EOS][:limit]
        self.reason = "STOP" if limit > len(answer) else "LENGTH"
        self.outputs: list = []
        self.status = "RUNNING"

    def can_read(self) -> bool:
        return bool(self.outputs)

    def read(self) -> dict:
        return {0: self.outputs.pop(0)}

    def cancel(self) -> None:
        self.status = "CANCEL"

    def get_status(self):
        return SimpleNamespace(name=self.status)

    def advance(self) -> None:
        token = self.left.pop(0)
        reason = "NONE" if self.left else self.reason
        self.outputs.append(SimpleNamespace(generated_ids=[token], finish_reason=SimpleNamespace(name=reason)))
        if not self.left:
            self.status = "FINISHED"


class Pipeline:
    """Answers with `answer(prompt)`, by default the prompt itself, one token per request and step.

    pause: seconds that a step takes. fail: error that the next step raises. hold: an event that steps wait for.
    """

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.configs: list = []
        self.answer = lambda prompt: prompt
        self.pause = 0.0
        self.fail: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()
        self.most_at_once = 0

    def get_config(self):
        return SimpleNamespace(temperature=1.0, do_sample=False, max_new_tokens=None)

    def add_request(self, number: int, ids: Ids, config) -> Handle:
        if getattr(config, "top_k", 1) == 7:
            raise RuntimeError("top_k of 7 is bad luck")
        prompt = bytes(ids.data[0].astype(np.uint8)).decode()
        handle = Handle(self.answer(prompt).encode(), config.max_new_tokens)
        if prompt.startswith("too big for the cache"):
            handle.status = "IGNORED"
        self.handles.append(handle)
        self.configs.append(config)
        return handle

    def running(self) -> list[Handle]:
        return [handle for handle in self.handles if handle.status == "RUNNING"]

    def has_non_finished_requests(self) -> bool:
        return bool(self.running())

    def step(self) -> None:
        self.hold.wait(20)
        time.sleep(self.pause)
        if self.fail:
            raise self.fail
        now = self.running()  # all, as openvino_genai does with its default settings
        self.most_at_once = max(self.most_at_once, len(now))
        for handle in now:
            handle.advance()

    def get_metrics(self):
        return SimpleNamespace(cache_usage=50.0, kv_cache_size_in_bytes=1024)


class Engine(engine.Engine):
    """The real engine with the fake pipeline."""

    def _load(self) -> None:
        self.tokenizer = Tokenizer()
        self._bytes = engine.token_bytes(self.tokenizer, "toy")
        self._pipeline = self.pipeline = Pipeline()


@contextlib.contextmanager
def served(app):
    """Serve an ASGI application in a thread on a free port; yields its URL and the thread."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    options = {"log_config": None, "access_log": False, "lifespan": "off", "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(app, timeout_keep_alive=75, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", thread
    finally:
        server.should_exit = True
        thread.join(10)


def wait_for(condition, seconds: float = 10.0) -> bool:
    """Whether `condition()` became true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
