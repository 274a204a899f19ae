"""Servers on 127.0.0.1 for tests: one that serves files with chosen faults, and a small model hub.

`with FaultServer({"/a.bin": data}, {"/a.bin": Fault(cut_at=1000, times=1)}) as server:` serves until the
block ends; `server.requests` lists what was asked for. A hub's content is {repo: {commit: {path: bytes}}},
the last commit being `main`.
"""

import hashlib
import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


@dataclass
class Fault:
    """What goes wrong with a path's GET requests."""

    status: int = 0  # answer this status and no file
    cut_at: int | None = None  # close the connection after so many bytes of each answer
    times: int = 1 << 30  # how many answers the fault spoils, then all is well
    ranges: bool = True  # False: Range is ignored, the whole file comes each time
    if_range: bool = True  # False: If-Range is ignored, a part is sent of a file that has changed
    length: bool = True  # False: neither Content-Length nor chunks, the end of the connection ends the file
    etag: bool = True
    stall: bool = False  # with cut_at: keep the connection open and silent instead of closing it
    pause: float = 0.0  # seconds between pieces of 4 KiB: a slow stream


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]  # names in lower case


class FaultServer:
    """Serves `files` (path -> bytes, both may be changed while it runs) with ETag, Range and If-Range."""

    def __init__(self, files: dict[str, bytes] | None = None, faults: dict[str, Fault] | None = None) -> None:
        self.files = dict(files or {})
        self.faults = dict(faults or {})
        self.requests: list[Request] = []
        self.stopping = threading.Event()

    def __enter__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            do_HEAD = do_GET

            def log_message(self, *arguments) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def url(self, path: str) -> str:
        return self.address + path

    def ranges(self, path: str) -> list[str | None]:
        """The Range header of each GET for `path`, in order."""
        return [r.headers.get("range") for r in self.requests if r.method == "GET" and r.path == path]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.command, path, headers))
        self.respond(handler, path, headers)

    def respond(self, handler: BaseHTTPRequestHandler, path: str, headers: dict[str, str]) -> None:
        if path in self.files:
            self.send_file(handler, path, self.files[path], headers)
        else:
            self.send(handler, 404, b"no such file")

    def send(self, handler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def send_file(self, handler, path: str, data: bytes, headers: dict[str, str], extra=None) -> None:
        fault = self.faults.get(path) or Fault()
        if fault.times <= 0 or handler.command == "HEAD":
            fault = Fault(ranges=fault.ranges, etag=fault.etag)
        else:
            fault.times -= 1
        if fault.status:
            return self.send(handler, fault.status, b"fault")
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        start, status = 0, 200
        reply = {"Accept-Ranges": "bytes", **(extra or {})}
        if fault.etag:
            reply["ETag"] = etag
        same = not fault.if_range or headers.get("if-range", etag) == etag
        if fault.ranges and same and headers.get("range", "").startswith("bytes="):
            start, status = int(headers["range"].removeprefix("bytes=").split("-")[0]), 206
            if start >= len(data):
                return self.send(handler, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
            reply["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        handler.send_response(status)
        if fault.length:
            reply["Content-Length"] = str(len(data) - start)
        for name, value in reply.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.close_connection = handler.close_connection or not fault.length or fault.cut_at is not None
        if handler.command != "HEAD":
            self._send_body(handler, data[start:], fault)

    def _send_body(self, handler, body: bytes, fault: Fault) -> None:
        body = body if fault.cut_at is None else body[: fault.cut_at]
        try:
            for at in range(0, len(body), 4096):
                handler.wfile.write(body[at : at + 4096])
                handler.wfile.flush()
                if fault.pause:
                    time.sleep(fault.pause)
            if fault.stall:
                self.stopping.wait(30)
        except OSError:  # the client went away, as some tests want it to
            handler.close_connection = True


class ModelHub(FaultServer):
    """As much of a model hub's interface as huggingface_hub needs to list and download a repository."""

    def __init__(self, repos: dict[str, dict[str, dict[str, bytes]]], faults: dict[str, Fault] | None = None):
        super().__init__(faults=faults)
        self.repos = repos

    def respond(self, handler: BaseHTTPRequestHandler, path: str, headers: dict[str, str]) -> None:
        owner_name, _, rest = path.removeprefix("/api/models").strip("/").partition("/")
        name, _, rest = rest.partition("/")
        commits = self.repos.get(f"{owner_name}/{name}")
        if commits is None:
            return self.send(handler, 404, b"", {"X-Error-Code": "RepoNotFound"})
        verb, _, rest = rest.partition("/")
        revision, _, file = rest.partition("/")
        commit = list(commits)[-1] if revision in ("main", "") else revision
        if commit not in commits:
            return self.send(handler, 404, b"", {"X-Error-Code": "RevisionNotFound"})
        files = commits[commit]
        if path.startswith("/api/models/"):
            siblings = [{"rfilename": name, **self._blob(name, data)} for name, data in files.items()]
            listing = {"id": f"{owner_name}/{name}", "sha": commit, "siblings": siblings}
            return self.send(handler, 200, json.dumps(listing).encode(), {"Content-Type": "application/json"})
        if verb != "resolve" or file not in files:
            return self.send(handler, 404, b"", {"X-Error-Code": "EntryNotFound"})
        return self.send_file(handler, path, files[file], headers, {"X-Repo-Commit": commit})

    @staticmethod
    def _blob(name: str, data: bytes) -> dict:
        large = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return {"size": len(data)} | ({"lfs": large} if name.endswith(".safetensors") else {})
