"""What the local server serves: the engine of a repository, its state in Model Server's form, its metrics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from notebooks.deepseek_serving.server import repository
from utils.serving.engine import Engine


class Service:
    """A repository that is served. Raises ValueError for an incomplete repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.repository, self._state = repository.read(self.folder), _state(self.folder)
        self.engine = Engine(self.repository.settings)
        self.guard = None  # set by `create_app`; it counts requests in flight and rejected ones
        self._reloading = asyncio.Lock()
        self._metrics = CollectorRegistry()
        self._metrics.register(self)

    @property
    def name(self) -> str:
        return self.repository.name

    def names(self) -> list[str]:
        """The names of the models that can answer now."""
        return [] if self.engine.problem else [self.name]

    @property
    def version(self) -> str:
        from importlib import metadata

        return metadata.version("openvino-genai")

    def status(self) -> dict:
        """The state of the model in the form of `GET /v1/config`."""
        if not self.engine.loaded.is_set():
            state, code, message = "LOADING", "OK", "OK"
        elif self.engine.problem:
            state, code, message = "END", "UNKNOWN", self.engine.problem
        else:
            state, code, message = "AVAILABLE", "OK", "OK"
        status = {"error_code": code, "error_message": message}
        return {self.name: {"model_version_status": [{"version": "1", "state": state, "status": status}]}}

    async def reload(self) -> bool:
        """Load the repository again if its files have changed; returns whether they have.

        The old model answers until the new one is loaded. Raises ValueError for an incomplete repository and for a
        model that cannot be loaded; the old model then stays.
        """
        async with self._reloading:
            if (state := _state(self.folder)) == self._state:
                return False
            new = await asyncio.to_thread(repository.read, self.folder)
            engine = Engine(new.settings)
            engine.start()
            await asyncio.to_thread(engine.loaded.wait)
            if engine.failure:
                raise ValueError(engine.failure)
            old, self.engine = self.engine, engine
            self.repository, self._state = new, state
            if self.guard:
                self.guard.max_concurrent += new.options.max_num_seqs - old.settings.max_num_seqs
            threading.Thread(target=old.close, kwargs={"drain": True}, name="drain", daemon=True).start()
            return True

    def metrics(self) -> tuple[bytes, str]:
        """The metrics in Prometheus' text format, and its media type."""
        return generate_latest(self._metrics), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics; prometheus_client calls this method."""
        engine, guard = self.engine, self.guard
        gauges = {
            "ovms_current_graphs": ("Requests being answered", guard.in_flight if guard else 0),
            "llm_requests_running": ("Requests with at least one token", engine.running),
            "llm_requests_waiting": ("Requests without a token yet", engine.waiting),
            "llm_kv_cache_usage_ratio": ("Part of the KV cache used in the last step", engine.cache_percent / 100),
            "llm_kv_cache_bytes": ("Size of the KV cache", engine.cache_bytes),
        }
        counters = {
            "llm_requests_finished": ("Requests answered to the end", engine.finished),
            "llm_requests_aborted": ("Requests whose client went away", engine.aborted),
            "llm_requests_refused": ("Requests refused because too many were waiting", guard.refused if guard else 0),
            "llm_prompt_tokens": ("Tokens of all prompts", engine.prompt_tokens),
            "llm_generated_tokens": ("Tokens generated", engine.generated_tokens),
            "llm_steps": ("Steps of the engine", engine.steps),
        }
        for family, values in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (text, value) in values.items():
                metric = family(name, text, labels=["name"])
                metric.add_metric([self.name], value)
                yield metric


def _state(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and modification times of all files, which differ after a repository is written again."""
    state = []
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        stat = file.stat()
        state.append((file.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns))
    return state
