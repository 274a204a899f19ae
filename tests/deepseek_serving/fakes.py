"""The real service, guard and endpoints with the engine's fake pipeline, and repositories without a model."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

from notebooks.deepseek_serving.server import repository, service
from notebooks.deepseek_serving.server.api import create_app
from notebooks.deepseek_serving.server.parsing import Limits
from tests.utils.serving.fakes import Engine, http, served, wait_for

__all__ = ["Engine", "http", "live", "toy_ir", "wait_for"]
XML = """<?xml version="1.0"?>
<net name="toy" version="11">
  <layers><layer id="0" name="w" type="Const" version="opset1"><data offset="{half}" size="{half}" /></layer></layers>
  <edges />
</net>"""


def toy_ir(folder: Path, context: int = 1000) -> Path:
    """An IR folder with all files of a repository's model, but without a real model."""
    folder.mkdir(parents=True)
    for network in repository.NETWORKS:
        (folder / f"{network}.xml").write_text(XML.format(half=8), encoding="utf-8")
        (folder / f"{network}.bin").write_bytes(bytes(range(16)))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": context}), encoding="utf-8")
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    return folder


@contextlib.contextmanager
def live(folder: Path, *, host: str = "127.0.0.1", api_key: str | None = None, **limits):
    """Serve the application in a thread; yields an object with `url`, `engine`, `pipeline`, `service` and `guard`."""
    toy = service.Service(folder)
    toy.engine = Engine(toy.repository.settings)
    toy.engine.start()
    toy.engine.loaded.wait(10)
    app = create_app(toy, host=host, api_key=api_key, limits=Limits(**limits))
    pipeline = toy.engine.pipeline
    with contextlib.closing(toy.engine), served(app) as (url, thread):
        try:
            yield SimpleNamespace(
                url=url, engine=toy.engine, pipeline=pipeline, service=toy, guard=toy.guard, thread=thread
            )
        finally:
            pipeline.hold.set()
