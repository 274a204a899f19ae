"""The server as a process. `with serve(folder) as server:` runs it until the block ends, on this machine only.

`python -m notebooks.ollama_openvino.server FOLDER [--port 11434]` serves until Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from notebooks.ollama_openvino.pipeline import pack
from utils.paths import models_dir
from utils.serving import process as serving

MODULE = __package__  # the module that runs in the server's process
PORT = 11434  # Ollama's


@dataclass(frozen=True)
class Server:
    """A running server. folder: its store. host: what `ollama.Client` takes."""

    host: str
    folder: Path
    log: Path
    pid: int


@contextlib.contextmanager
def serve(
    folder: Path,
    port: int = 0,
    *,
    device: str = "CPU",
    most: int = 3,
    waiting: int | None = None,
    properties: dict | None = None,
    timeout: float = 120.0,
) -> Iterator[Server]:
    """Serve the store in `folder` while the block runs. port 0: a free one.

    device: of models that name none. most: models in memory. waiting: requests that may queue. properties: of the
    device. Raises serving.ServerFailed where the server does not start.
    """
    arguments = [
        str(Path(folder).resolve()),
        "--port",
        str(port),
        "--device",
        device,
        "--most",
        str(most),
        "--until-eof",
    ]
    arguments += [] if waiting is None else ["--waiting", str(waiting)]
    arguments += ["--properties", json.dumps(properties)] if properties else []
    with serving.running(MODULE, arguments, "/api/version", timeout=timeout) as process:
        yield Server(process.url, Path(folder), process.log, process.pid)


def install(host: str, name: str, source: Path, **settings) -> None:
    """Create a model on a server of an IR folder or a GGUF file. settings: those of `ollama.Client.create`.

    Raises ollama.ResponseError.
    """
    import ollama

    client = ollama.Client(host=host, trust_env=False)
    with tempfile.TemporaryDirectory() as scratch:
        file = source
        if source.is_dir():
            file = Path(scratch, f"{source.name}.tar.gz")
            pack(source, file)
        client.create(model=name, files={file.name: client.create_blob(file)}, **settings)


def default_folder() -> Path:
    """The store of the command line."""
    return models_dir() / "ollama"


def parser() -> argparse.ArgumentParser:
    """The options of a server."""
    result = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Serve OpenVINO models to Ollama clients.")
    result.add_argument(
        "folder", type=Path, nargs="?", default=default_folder(), help="the store; default: %(default)s"
    )
    result.add_argument("--port", type=int, default=PORT, help="default %(default)s; 0 takes a free one")
    result.add_argument("--device", default="CPU", help="of models that name none; default %(default)s")
    result.add_argument("--most", type=int, default=3, help="models in memory at once; default %(default)s")
    result.add_argument("--waiting", type=int, default=128, help="requests that may queue; default %(default)s")
    result.add_argument("--properties", type=json.loads, default={}, help="of the device, as JSON")
    result.add_argument("--until-eof", action="store_true", help="end when standard input does")
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    from notebooks.ollama_openvino.server.api import LIMITS, create_app
    from notebooks.ollama_openvino.server.models import Models
    from notebooks.ollama_openvino.server.store import Store

    try:
        store = Store(options.folder)
        listener = serving.listen(serving.LOOPBACK, options.port)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    models = Models(store, options.device, most=options.most, properties=options.properties)
    app = create_app(models, limits=replace(LIMITS, waiting=options.waiting))
    serving.AppServer(app, listener, models.close, options.until_eof).run()
    store.close()
    return 0
