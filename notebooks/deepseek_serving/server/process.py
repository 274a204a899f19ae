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
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from notebooks.deepseek_serving.server import ovms, repository
from utils import command
from utils.paths import ROOT

LOOPBACK = "127.0.0.1"
API_KEY_VARIABLE = "OPENVINO_SERVER_API_KEY"  # other users of the machine can read a command line, but not this
KINDS = ("auto", "local", "ovms")
GRACE_S = 2  # how long the server continues the answers in flight after it was asked to end
MODULE = __package__  # the module that runs in the server's process


class ServerFailed(RuntimeError):
    """The server did not start, or has ended; the message ends with the last lines of its log."""


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
    workdir = tempfile.TemporaryDirectory(prefix="model-server-", ignore_cleanup_errors=True)
    log = Path(workdir.name) / "server.log"
    arguments = [str(Path(folder).resolve()), "--port", str(port), "--host", host, "--kind", kind, "--until-eof"]
    arguments += [] if waiting is None else ["--waiting", str(waiting)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | ({} if api_key is None else {API_KEY_VARIABLE: api_key})
    with workdir, log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment,
            cwd=ROOT,
            **({"start_new_session": True} if os.name == "posix" else {}),  # Ctrl-C is for the notebook
        )
        try:
            url = _wait_until_ready(process, log, model, timeout, quiet)
            yield Server(url, kind, model, log, process.pid)
        finally:
            _stop(process)


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


def _wait_until_ready(process: subprocess.Popen, log: Path, model: str, timeout: float, quiet: bool) -> str:
    """The server's URL, which is the first line of its output, once the server is ready."""
    started, last_report_s = time.monotonic(), 0.0
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()), daemon=True)
    reader.start()
    while (waited := time.monotonic() - started) < timeout:
        if process.poll() is not None:
            raise ServerFailed(f"The server ended while it started. {_tail(log)}")
        if not reader.is_alive() and lines[0]:
            url = lines[0].decode().strip()
            if _is_ready(url, model):
                if not quiet:
                    print(f"{model} is served at {url} after {waited:.0f} s", flush=True)
                return url
        if not quiet and waited - last_report_s > 5:
            last_report_s = waited
            print(f"Waiting for {model}: {waited:.0f} s", flush=True)
        time.sleep(0.05)
    raise ServerFailed(f"The server was not ready after {timeout:.0f} s. {_tail(log)}")


def _is_ready(url: str, model: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy for loopback
    try:
        with opener.open(f"{url}/v2/health/ready", timeout=5) as reply:
            return reply.status == 200
    except OSError:  # not listening yet, or not ready
        return False


def _tail(log: Path, lines: int = 15) -> str:
    text = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    return f"Its log ends:\n{text}" if text else "Its log is empty."


def _stop(process: subprocess.Popen) -> None:
    """Ask the server to end by closing its pipe, and kill it and its children if they do not."""
    import psutil

    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.stdin.close()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


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
            listener = _listen(options.host, options.port)
        except (ValueError, OSError) as error:
            print(error, file=sys.stderr)
            return 1
        if kind == "ovms":
            return _run_ovms(program, folder, listener, options.until_eof)
        return _run_local(folder, listener, options.host, api_key, options.waiting, options.until_eof)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":  # on Windows this option lets two servers share a port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"{host}:{port} cannot be had ({error}). Take another port, or 0 for a free one.") from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = LOOPBACK if host == "0.0.0.0" else "::1" if host == "::" else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _on_end_request(end: Callable[[], None], until_eof: bool) -> None:
    """Call `end` on SIGTERM, on Ctrl-C, and with `until_eof` when standard input is closed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())

    def watch() -> None:
        while os.read(0, 1024):  # sys.stdin would hold its lock when the interpreter ends
            pass
        end()

    if until_eof:
        threading.Thread(target=watch, daemon=True).start()


def _run_local(folder: Path, listener: socket.socket, host: str, api_key: str | None, waiting: int, eof: bool) -> int:
    import uvicorn

    from notebooks.deepseek_serving.server.api import create_app
    from notebooks.deepseek_serving.server.engine import STOPPING_MESSAGE
    from notebooks.deepseek_serving.server.parsing import Limits
    from notebooks.deepseek_serving.server.service import Service

    _allow_many_connections()
    service = Service(folder)
    app = create_app(service, host=host, api_key=api_key, limits=Limits(waiting=waiting))
    settings = {"log_config": None, "access_log": False, "lifespan": "off", "server_header": False}
    settings |= {"timeout_graceful_shutdown": GRACE_S + 2, "timeout_keep_alive": 75, "backlog": 2048}
    server = uvicorn.Server(uvicorn.Config(app, **settings))
    server.capture_signals = contextlib.nullcontext  # `_on_end_request` handles signals

    def end() -> None:
        if not server.should_exit:
            server.should_exit = True  # no new requests; those in flight may finish, or get an error
            closing = threading.Timer(GRACE_S, service.engine.close)
            closing.daemon = True
            closing.start()

    def end_unless_loaded() -> None:
        service.engine.loaded.wait()
        if service.engine.failure:
            end()

    _on_end_request(end, eof)
    service.engine.start()
    threading.Thread(target=end_unless_loaded, daemon=True).start()
    listener.listen(2048)
    print(_address(listener), flush=True)
    server.run(sockets=[listener])
    service.engine.close()
    return int(service.engine.failure != STOPPING_MESSAGE)


def _run_ovms(program: list[str], folder: Path, listener: socket.socket, eof: bool) -> int:
    """Run Model Server as a child until it ends or an end is requested; its output goes to our log."""
    port, url = listener.getsockname()[1], _address(listener)
    listener.close()  # the port is free; Model Server binds it next
    container = f"openvino-model-server-{os.getpid()}"
    end_requested = threading.Event()
    _on_end_request(end_requested.set, eof)
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
        child.terminate()
        try:
            child.wait(8)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if "--name" in child.args:
            ovms.remove_container(program, container)


def _die_with_parent() -> None:
    """Let Linux send the child SIGTERM when this process is killed."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _allow_many_connections(wanted: int = 8192) -> None:
    """Raise the limit of open files as far as the system allows; each connection takes one."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
