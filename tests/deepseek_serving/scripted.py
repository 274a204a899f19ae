"""A server on 127.0.0.1 that answers chat requests with scripted bytes, and reports when its client disconnects."""

from __future__ import annotations

import json
import select
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def event(delta: dict | None = None, finish: str | None = None, **extra) -> bytes:
    """A server-sent event with one choice; without a delta the list of choices is empty."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices} | extra, ensure_ascii=False).encode() + b"\n\n"


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # as many clients may connect at once


class Scripted:
    """`answer(handler, body)` writes the reply to a POST; `requests` lists (path, headers, body) in order."""

    def __init__(self, answer: Callable, models: tuple[str, ...] = ("tiny",)) -> None:
        self.requests: list[tuple[str, dict, dict]] = []
        self.hung_up = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requests.append((self.path, dict(self.headers), {}))
                self.close_connection = True
                self.reply(200, {"data": [{"id": name} for name in models]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, dict(self.headers), body))
                self.close_connection = True
                answer(self, body)

            def reply(self, status: int, body: dict | str, **headers: str) -> None:
                """Send a whole reply."""
                content = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), "Connection": "close", **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(content)

            def stream(self, *pieces: bytes, whole: bool = True) -> None:
                """Send a chunked reply; `whole=False`: without the chunk that ends it."""
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.send_header("Connection", "close")
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                    self.wfile.flush()
                if whole:
                    self.wfile.write(b"0\r\n\r\n")

            def wait_for_hang_up(self) -> None:
                """Wait until the client closes the connection, at most a minute."""
                if select.select([self.connection], [], [], 60)[0] and not self.connection.recv(1):
                    outer.hung_up.set()

            def log_message(self, *arguments) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> Scripted:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"
