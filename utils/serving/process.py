"""The process of a local server: it listens, serves an ASGI application, and ends when it is asked to.

`running` starts `python -m MODULE` and ends it with the block. In that process `serve_app` serves. The process also
ends when its parent is killed, because it watches a pipe that only the parent holds open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from utils.paths import ROOT

LOOPBACK = "127.0.0.1"
GRACE_S = 2  # how long a server continues the answers in flight after it was asked to end


class ServerFailed(RuntimeError):
    """The server did not start, or has ended; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Process:
    """A server's process. url: the address that it printed."""

    url: str
    log: Path
    pid: int


@contextlib.contextmanager
def running(
    module: str,
    arguments: Sequence[str],
    health: str,
    *,
    timeout: float = 600.0,
    environment: dict[str, str] | None = None,
    progress: Callable[[float], None] = lambda waited_s: None,
) -> Iterator[Process]:
    """Run `python -m module arguments` while the block runs; it is ready when the path `health` answers with 200.

    The command prints its address as the first line of its output. timeout: seconds until it must be ready. progress:
    is called every five seconds of waiting. Raises ServerFailed where the server does not become ready.
    """
    workdir = tempfile.TemporaryDirectory(prefix="model-server-", ignore_cleanup_errors=True)
    log = Path(workdir.name) / "server.log"
    with workdir, log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | (environment or {}),
            cwd=ROOT,
            **({"start_new_session": True} if os.name == "posix" else {}),  # Ctrl-C is for the notebook
        )
        try:
            yield Process(_wait_until_ready(process, log, health, timeout, progress), log, process.pid)
        finally:
            _stop(process)


def _wait_until_ready(
    process: subprocess.Popen, log: Path, health: str, timeout: float, progress: Callable[[float], None]
) -> str:
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
            if answers(url + health):
                return url
        if waited - last_report_s > 5:
            last_report_s = waited
            progress(waited)
        time.sleep(0.05)
    raise ServerFailed(f"The server was not ready after {timeout:.0f} s. {_tail(log)}")


def answers(url: str) -> bool:
    """Whether a GET request to a local address is answered with 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy for loopback
    try:
        with opener.open(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:  # not listening yet, or not ready
        return False


def terminate(process: subprocess.Popen, grace_s: float) -> None:
    """Ask a process to end, and kill it if it has not after `grace_s` seconds."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0: a free one. Raises ValueError for a port out of range, OSError for one that is taken."""
    if not 0 <= port <= 65535:
        raise ValueError(f"There is no port {port}: take one from 1 to 65535, or 0 for a free one.")
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


def address(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    host = LOOPBACK if host == "0.0.0.0" else "::1" if host == "::" else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def on_end_request(end: Callable[[], None], until_eof: bool) -> None:
    """Call `end` on SIGTERM, on Ctrl-C, and with `until_eof` when standard input is closed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())

    def watch() -> None:
        while os.read(0, 1024):  # sys.stdin would hold its lock when the interpreter ends
            pass
        end()

    if until_eof:
        threading.Thread(target=watch, daemon=True).start()


class AppServer:
    """Serves an ASGI application on a bound socket until `end` is called, a signal comes, or standard input ends.

    close: ends the work of the answers in flight; it is called GRACE_S after `end`, so that they may finish before.
    """

    def __init__(self, app, listener: socket.socket, close: Callable[[], None], until_eof: bool) -> None:
        import uvicorn

        settings = {"log_config": None, "access_log": False, "lifespan": "off", "server_header": False}
        settings |= {"timeout_graceful_shutdown": GRACE_S + 2, "timeout_keep_alive": 75, "backlog": 2048}
        self._server = uvicorn.Server(uvicorn.Config(app, **settings))
        self._server.capture_signals = contextlib.nullcontext  # `on_end_request` handles signals
        self._listener, self._close = listener, close
        on_end_request(self.end, until_eof)

    def end(self) -> None:
        """Take no new requests; those in flight may finish, or get an error."""
        if not self._server.should_exit:
            self._server.should_exit = True
            closing = threading.Timer(GRACE_S, self._close)
            closing.daemon = True
            closing.start()

    def run(self) -> None:
        """Print the address, serve until the end, and close."""
        allow_many_connections()
        self._listener.listen(2048)
        print(address(self._listener), flush=True)
        self._server.run(sockets=[self._listener])
        self._close()


def allow_many_connections(wanted: int = 8192) -> None:
    """Raise the limit of open files as far as the system allows; each connection takes one."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
