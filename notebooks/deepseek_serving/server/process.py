"""Serve a model repository by OpenVINO Model Server where this machine has it, else by a local server.

`python -m notebooks.deepseek_serving.server [FOLDER] [--port 8000]` serves until Ctrl-C or SIGTERM; without a folder
it serves the tiny model at 4 bits. In Python `with serve(folder) as server:` runs that command in another process. The
server ends with the block. It also ends when its parent is killed, because it watches a pipe that only the parent holds
open.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from notebooks.deepseek_serving.server import ovms, repository
from utils import command
from utils.serving import process as serving
from utils.serving.process import LOOPBACK, ServerFailed

API_KEY_VARIABLE = "OPENVINO_SERVER_API_KEY"  # other users of the machine can read a command line, but not this
KINDS = ("auto", "local", "ovms")
MODULE = __package__  # the module that runs in the server's process
__all__ = ["KINDS", "Server", "ServerFailed", "main", "serve"]


@dataclass(frozen=True)
class Server:
    """A running server. kind: "ovms" (OpenVINO Model Server) or "local"; model: the name that it serves."""

    url: str
    kind: str
    model: str
    log: Path
    pid: int

    @property
    def title(self) -> str:
        return "OpenVINO Model Server" if self.kind == "ovms" else "the local server (openvino-genai)"


@contextlib.contextmanager
def serve(
    folder: Path,
    port: int = 0,
    *,
    host: str = LOOPBACK,
    api_key: str | None = None,
    kind: str = "auto",
    waiting: int | None = None,
    timeout: float = 600.0,
    quiet: bool = False,
) -> Iterator[Server]:
    """Serve the repository `folder` while the block runs. port 0: a free one. kind: "auto", "local" or "ovms".

    waiting: requests that may queue beyond those in the batch (local server). timeout: seconds until the server must
    be ready. Raises ValueError, before anything starts, for an incomplete repository, a port out of range, and an
    address other than loopback without an API key. Raises ServerFailed where the server does not become ready.
    """
    model = repository.read(folder).name
    kind, _ = choose(host, port, api_key, kind)
    arguments = [str(Path(folder).resolve()), "--port", str(port), "--host", host, "--kind", kind, "--until-eof"]
    arguments += [] if waiting is None else ["--waiting", str(waiting)]
    environment = {} if api_key is None else {API_KEY_VARIABLE: api_key}

    def progress(waited_s: float) -> None:
        if not quiet:
            print(f"Waiting for {model}: {waited_s:.0f} s", flush=True)

    options = {"timeout": timeout, "environment": environment, "progress": progress}
    started = time.monotonic()
    with serving.running(MODULE, arguments, "/v2/health/ready", **options) as process:
        if not quiet:
            print(f"{model} is served at {process.url} after {time.monotonic() - started:.0f} s", flush=True)
        yield Server(process.url, kind, model, process.log, process.pid)


def choose(host: str, port: int, api_key: str | None, kind: str) -> tuple[str, list[str] | None]:
    """The kind of server to start ("ovms" or "local"), and the program of `ovms.find` for the former.

    Raises ValueError for arguments that do not fit each other.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}.")
    if not 0 <= port <= 65535:
        raise ValueError(f"There is no port {port}: take one from 1 to 65535, or 0 for a free one.")
    if api_key is not None and (len(api_key) < 16 or not api_key.isascii() or not api_key.isprintable()):
        raise ValueError("The API key must have 16 printable ASCII characters or more.")
    if not is_loopback(host) and api_key is None:
        raise ValueError(f"{host} can be reached by others: give an API key, or serve on {LOOPBACK}.")
    private = host == LOOPBACK and api_key is None
    if kind == "ovms" and not private:
        raise ValueError(f"Model Server is started here on {LOOPBACK} only, where it asks for no key.")
    program = ovms.find() if kind != "local" and private else None
    if kind == "ovms" and program is None:
        raise ValueError("There is no ovms: set OVMS to the path of its binary, or get its Docker image.")
    return ("ovms" if program else "local"), program


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- the server's own process ---------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Serve a model repository.")
    folder_help = "holds config.json and the model's folder; without it, the tiny model is served"
    parser.add_argument("folder", type=Path, nargs="?", help=folder_help)
    parser.add_argument("--port", type=int, default=8000, help="default 8000; 0 takes a free one")
    parser.add_argument(
        "--host", default=LOOPBACK, help=f"default {LOOPBACK}; another one wants {API_KEY_VARIABLE} to be set"
    )
    parser.add_argument("--kind", choices=KINDS, default="auto", help="default: Model Server where it is installed")
    parser.add_argument("--waiting", type=int, default=128, help="requests that may queue (local server)")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    options = parser.parse_args(arguments)
    api_key = os.environ.pop(API_KEY_VARIABLE, None)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with contextlib.ExitStack() as stack:
        try:
            folder = options.folder or stack.enter_context(repository.temporary("tiny", command.tiny(MODULE)))
            repository.read(folder)
            kind, program = choose(options.host, options.port, api_key, options.kind)
            listener = serving.listen(options.host, options.port)
        except (ValueError, OSError) as error:
            print(error, file=sys.stderr)
            return 1
        if kind == "ovms":
            return _run_ovms(program, folder, listener, options.until_eof)
        return _run_local(folder, listener, options.host, api_key, options.waiting, options.until_eof)


def _run_local(folder: Path, listener: socket.socket, host: str, api_key: str | None, waiting: int, eof: bool) -> int:
    from notebooks.deepseek_serving.server.api import create_app
    from notebooks.deepseek_serving.server.parsing import Limits
    from notebooks.deepseek_serving.server.service import Service
    from utils.serving.engine import STOPPING_MESSAGE

    service = Service(folder)
    app = create_app(service, host=host, api_key=api_key, limits=Limits(waiting=waiting))
    server = serving.AppServer(app, listener, lambda: service.engine.close(), eof)

    def end_unless_loaded() -> None:
        service.engine.loaded.wait()
        if service.engine.failure:
            server.end()

    service.engine.start()
    threading.Thread(target=end_unless_loaded, daemon=True).start()
    server.run()
    return int(service.engine.failure != STOPPING_MESSAGE)


def _run_ovms(program: list[str], folder: Path, listener: socket.socket, eof: bool) -> int:
    """Run Model Server as a child until it ends or an end is requested; its output goes to our log."""
    port, url = listener.getsockname()[1], serving.address(listener)
    listener.close()  # the port is free; Model Server binds it next
    container = f"openvino-model-server-{os.getpid()}"
    end_requested = threading.Event()
    serving.on_end_request(end_requested.set, eof)
    child = subprocess.Popen(
        ovms.command(program, folder, port, container),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    print(url, flush=True)
    try:
        while child.poll() is None and not end_requested.wait(0.1):
            pass
        return 0 if end_requested.is_set() else child.returncode or 1
    finally:
        serving.terminate(child, 8)
        if "--name" in child.args:
            ovms.remove_container(program, container)


def _die_with_parent() -> None:
    """Let Linux send the child SIGTERM when this process is killed."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
