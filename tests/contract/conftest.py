"""The server that the contract is tested on: the one at OVMS_URL, else the local one with the tiny model.

OVMS_URL=http://127.0.0.1:8000 pytest tests/contract   # a Model Server that serves a chat model
"""

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest


class Target(NamedTuple):
    """url: of the server. model: a chat model that it serves. kind: "ovms" or "local"."""

    url: str
    model: str
    kind: str

    def body(self, **changes) -> dict:
        """A small chat request; a value of ... leaves the key out."""
        messages = [{"role": "user", "content": "Say hello."}]
        body = {"model": self.model, "messages": messages, "max_tokens": 8, "temperature": 0} | changes
        return {key: value for key, value in body.items() if value is not ...}


def differences() -> list[dict[str, str]]:
    """The known differences between the local server and Model Server: the table of the notebook's README."""
    return tomllib.loads(Path(__file__).with_name("differences.toml").read_text(encoding="utf-8"))["difference"]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if url := os.environ.get("OVMS_URL"):
        url = url.rstrip("/")
        models = httpx.get(f"{url}/v3/models", trust_env=False).json()["data"]
        kind = "local" if "local" in httpx.get(f"{url}/v2", trust_env=False).json()["name"] else "ovms"
        yield Target(url, models[0]["id"], kind)
        return
    from notebooks.deepseek_serving import convert
    from notebooks.deepseek_serving.server import repository, serve

    ir = convert.prepare("tiny", "INT4")
    folder = repository.write(tmp_path_factory.mktemp("contract") / "repository", "smollm2", ir)
    with serve(folder, kind="local") as running:
        yield Target(running.url, running.model, "local")


@pytest.fixture(scope="session")
def client(target: Target) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=target.url, timeout=120, trust_env=False) as one:
        yield one
