"""The models in memory: loaded when they are needed, unloaded when nobody has used them for a while.

A request takes a `Lease`. The engine of a package serves all models that share it. Methods belong to the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from notebooks.ollama_openvino.pipeline import PackageError
from notebooks.ollama_openvino.server.store import Model, Store
from utils import preflight
from utils.serving import engine
from utils.serving.guard import RequestError

KEEP_ALIVE_S = 300.0  # Ollama's default
FOREVER = float("inf")
SEQUENCES = 64  # in a batch of one model
CACHE_GB = 1  # KV cache of one model, which grows up to this size
WEIGHTS_FACTOR = 1.3  # memory that a loaded model takes, by the size of its files
THINK = ("<think>", "enable_thinking")  # in the chat templates of models that think aloud
GB = 1e9


class Embedder:
    """A model of vectors. Its calls are made in a thread, one after another."""

    def __init__(self, folder: Path, device: str) -> None:
        import openvino_genai

        config = openvino_genai.TextEmbeddingPipeline.Config()
        pooling = folder / "1_Pooling" / "config.json"  # of sentence-transformers
        if pooling.is_file():
            modes = json.loads(pooling.read_text(encoding="utf-8"))
            kinds = {"pooling_mode_mean_tokens": "MEAN", "pooling_mode_lasttoken": "LAST_TOKEN"}
            kind = next((name for mode, name in kinds.items() if modes.get(mode)), "CLS")
            config.pooling_type = openvino_genai.TextEmbeddingPipeline.PoolingType.__members__[kind]
        self._pipeline = openvino_genai.TextEmbeddingPipeline(folder, device, config)
        self._tokenizer = openvino_genai.Tokenizer(folder)
        self.lock = asyncio.Lock()

    def count(self, texts: list[str]) -> list[int]:
        """The number of tokens of each text."""
        return [self._tokenizer.encode(text).input_ids.shape[1] for text in texts]

    def embed(self, texts: list[str]) -> list[list[float]]:
        """A vector of length 1 for each text."""
        return self._pipeline.embed_documents(texts)


class Loaded:
    """A package in memory. name: of the model that was asked for last. users: requests that use it now."""

    def __init__(self, model: Model, worker: engine.Engine | Embedder, weights: int) -> None:
        self.model, self.worker, self.weights = model, worker, weights
        self.name = model.name
        self.users = 0
        self.keep_s = KEEP_ALIVE_S
        self.used = time.monotonic()  # when the last request ended
        self.retired = False  # no further request gets it
        self.timer: asyncio.TimerHandle | None = None

    @property
    def bytes(self) -> int:
        """The size of its files, and of its KV cache when it is full."""
        return self.weights + getattr(self.worker, "cache_bytes", 0)

    @property
    def expires(self) -> datetime:
        """When it will be unloaded if nobody uses it."""
        seconds = self.keep_s if self.users else self.used + self.keep_s - time.monotonic()
        return datetime.now(UTC) + timedelta(seconds=min(max(seconds, 0), 100 * 365 * 86400))

    @property
    def thinks(self) -> bool:
        template = self.worker.tokenizer.chat_template if isinstance(self.worker, engine.Engine) else ""
        return any(mark in template for mark in THINK)


class Lease:
    """The right of one request to use a loaded package. `abort` gives it back, and may be called twice."""

    def __init__(self, models: Models, loaded: Loaded, model: Model, load_s: float) -> None:
        self.models, self.loaded, self.model, self.load_s = models, loaded, model, load_s
        self._held = True

    @property
    def worker(self) -> engine.Engine | Embedder:
        return self.loaded.worker

    def abort(self) -> None:
        if self._held:
            self._held = False
            self.models.release(self.loaded)


class Models:
    """The models of a store, in memory when they are needed.

    device: of models that name none. most: how many may be in memory. properties: of the device. make_engine,
    make_embedder: make the worker of a language model and of a model of vectors.
    """

    def __init__(
        self,
        store: Store,
        device: str = "CPU",
        *,
        most: int = 3,
        properties: dict | None = None,
        make_engine: Callable[[engine.Settings], engine.Engine] = engine.Engine,
        make_embedder: Callable[[Path, str], Embedder] = Embedder,
    ) -> None:
        self.store, self.device, self.most, self.properties = store, device, most, properties or {}
        self.make_engine, self.make_embedder = make_engine, make_embedder
        self.loaded: dict[tuple[str, str], Loaded] = {}
        self._loading = asyncio.Lock()
        self._closing: set[asyncio.Task] = set()

    async def take(self, name: str, keep_s: float | None, kind: str | None = None) -> Lease:
        """Load the model if it is not in memory. kind: what the model must be. Raises RequestError, StoreError.

        keep_s: how long it stays after this request; None: as long as before, at first KEEP_ALIVE_S.
        """
        model = await asyncio.to_thread(self.store.get, name)
        if kind is not None and model.kind != kind:
            does = "generate" if kind == "completion" else "embeddings"
            raise RequestError(400, f"{model.name} does not support {does}: it is a model for {model.kind}.")
        started, key = time.monotonic(), (model.package, model.device or self.device)
        loaded = self.loaded.get(key)
        if loaded is None or not self._works(loaded):
            async with self._loading:
                loaded = self.loaded.get(key)
                if loaded is None or not self._works(loaded):
                    loaded = self.loaded[key] = await self._load(model, key[1])
        if loaded.timer:
            loaded.timer.cancel()
        loaded.users += 1
        loaded.name = model.name
        loaded.keep_s = loaded.keep_s if keep_s is None else keep_s
        return Lease(self, loaded, model, time.monotonic() - started)

    def release(self, loaded: Loaded) -> None:
        """A request has ended."""
        loaded.users -= 1
        loaded.used = time.monotonic()
        if loaded.users:
            return
        if loaded.retired or loaded.keep_s <= 0:
            self.unload(loaded)
        elif loaded.keep_s < FOREVER:
            loaded.timer = asyncio.get_running_loop().call_later(loaded.keep_s, self._expire, loaded)

    def retire(self, name: str) -> None:
        """Unload the package of a model once nobody uses it. Raises StoreError where there is no such model."""
        model = self.store.get(name)
        loaded = self.loaded.get((model.package, model.device or self.device))
        if loaded:
            loaded.keep_s = 0
            if not loaded.users:
                self.unload(loaded)

    def unload(self, loaded: Loaded) -> None:
        """Take a package out of memory. Its engine ends in a thread."""
        loaded.retired = True
        if loaded.timer:
            loaded.timer.cancel()
        for key in [key for key, each in self.loaded.items() if each is loaded]:
            del self.loaded[key]
        worker, loaded.worker = loaded.worker, None
        task = asyncio.ensure_future(asyncio.to_thread(_close, [worker]))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def settled(self) -> None:
        """Wait until what was unloaded has given its memory back."""
        while self._closing:
            await asyncio.wait(list(self._closing))

    def close(self) -> None:
        """End all engines, at once; the requests that wait for them get an error."""
        for loaded in list(self.loaded.values()):
            if isinstance(loaded.worker, engine.Engine):
                loaded.worker.close()

    @staticmethod
    def _works(loaded: Loaded) -> bool:
        return not loaded.retired and not getattr(loaded.worker, "failure", None)

    def _expire(self, loaded: Loaded) -> None:
        if not loaded.users and not loaded.retired:
            self.unload(loaded)

    async def _load(self, model: Model, device: str) -> Loaded:
        """Load a model after making room for it. Raises RequestError where it does not fit or cannot be loaded."""
        for loaded in [each for each in self.loaded.values() if not self._works(each)]:
            loaded.retired = True
            if not loaded.users:
                self.unload(loaded)
        try:
            folder = await asyncio.to_thread(self.store.folder_of, model)
        except (PackageError, OSError) as error:
            raise RequestError(500, f"{model.name} cannot be unpacked: {error}") from error
        weights = (
            folder.stat().st_size if folder.is_file() else sum(file.stat().st_size for file in folder.glob("*.bin"))
        )
        await self._make_room(model, weights)
        try:
            worker = await asyncio.to_thread(self._open, model, folder, device)
        except (RuntimeError, ValueError) as error:
            raise RequestError(500, f"{model.name} cannot be loaded on {device}: {_first_line(error)}") from error
        return Loaded(model, worker, weights)

    async def _make_room(self, model: Model, weights: int) -> None:
        needed = WEIGHTS_FACTOR * weights / GB + (CACHE_GB if model.kind == "completion" else 0)
        while len(self.loaded) >= self.most or needed > preflight.free_gb():
            idle = [each for each in self.loaded.values() if not each.users]
            if not idle:
                break
            self.unload(min(idle, key=lambda each: each.used))
            await self.settled()
        if len(self.loaded) >= self.most:
            raise RequestError(
                503,
                f"{self.most} models are in use, and {model.name} would be one more: try again.",
                {"Retry-After": "1"},
            )
        if (free := preflight.free_gb()) < needed:
            raise RequestError(
                500,
                f"{model.name} needs more memory ({needed:.1f} GB) than is free ({free:.1f} GB): stop another program.",
            )

    def _open(self, model: Model, folder: Path, device: str) -> engine.Engine | Embedder:
        if model.kind == "embedding":
            return self.make_embedder(folder, device)
        scheduler = {"cache_size": CACHE_GB, "max_num_batched_tokens": 512, "enable_prefix_caching": True}
        settings = engine.Settings(model.name, folder, model.context, device, SEQUENCES, scheduler, self.properties)
        worker = self.make_engine(settings)
        worker.start()
        worker.loaded.wait()
        if worker.failure:
            raise RuntimeError(worker.failure)
        return worker


def keep_alive(value) -> float | None:
    """The seconds of a `keep_alive` field: a number, or a text such as "5m" or "1h30m"; negative ones mean for ever.

    Raises RequestError for anything else.
    """
    if value is None:
        return None
    message = f'keep_alive is {value!r}; give seconds, or a text such as "5m", "1h30m", "0" or "-1".'
    if type(value) in (int, float) and abs(value) < 1e12:
        seconds = float(value)
    elif isinstance(value, str) and re.fullmatch(r"-?\d{1,9}(\.\d{1,6})?", value):
        seconds = float(value)
    elif isinstance(value, str) and re.fullmatch(r"-?(\d{1,9}(\.\d{1,6})?(ms|h|m|s))+", value):
        units = {"ms": 1e-3, "s": 1, "m": 60, "h": 3600}
        seconds = sum(float(n) * units[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", value))
        seconds = -seconds if value.startswith("-") else seconds
    else:
        raise RequestError(400, message)
    return FOREVER if seconds < 0 else seconds


def _close(workers: list) -> None:
    """End an engine and give its memory back to the system."""
    worker = workers.pop()
    if isinstance(worker, engine.Engine):
        worker.close()
    del worker
    gc.collect()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
