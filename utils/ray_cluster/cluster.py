"""A Ray cluster: one on this machine, or the one whose head the environment variable RAY_ADDRESS names."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import tempfile
from pathlib import Path

import ray
import ray.data

from utils.serving.process import LOOPBACK

CPUS = 0.4  # what an actor reserves; if they reserve all, Ray has none left for its own tasks
CONNECT_S = 3.0  # how long the head of a cluster may take to accept a connection
OBJECT_STORE_BYTES = 128 << 20  # shared memory for what goes between processes; prompts and answers are short
LONGEST_PARENT = 26  # characters: Ray puts sockets below its folder, whose names may have 103 on macOS
NODE = "127.0.0.2" if sys.platform == "linux" else LOOPBACK  # Linux: Ray replaces 127.0.0.1 by an outer address
QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


class Cluster:
    """A connection to a Ray cluster, from now until `close` or the end of the `with` block.

    Without RAY_ADDRESS it starts a cluster on this machine and ends it again: `cpus` processors (by default all), no
    dashboard, no telemetry. Its processes ask for a token, because Ray opens ports on all interfaces of the machine.
    Raises ValueError for a RAY_ADDRESS where no cluster answers, and for a TMPDIR that is too long for sockets.
    """

    def __init__(self, cpus: int | None = None) -> None:
        self._folder = None
        for name in ("ray.serve", "ray.data"):
            logging.getLogger(name).setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        if address := os.environ.get("RAY_ADDRESS"):
            _check(address)
            ray.init(address=address, **QUIET)
        else:
            self._folder = _short_folder()
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the home folder
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address=NODE,
                _temp_dir=self._folder.name,
                **QUIET,
            )
        self.address = ray.get_runtime_context().gcs_address

    def close(self) -> None:
        """Disconnect; end the cluster if it was started here."""
        ray.shutdown()
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _check(address: str) -> None:
    """Raise ValueError unless a program listens at `address`, "host:port". Ray itself would try for minutes."""
    remedy = "Give host:port of a running head (ray start --head prints it), or unset it to start Ray on this machine."
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"RAY_ADDRESS={address} is no host:port. {remedy}")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        raise ValueError(f"No Ray cluster answers at RAY_ADDRESS={address} ({error}). {remedy}") from error


def _short_folder() -> tempfile.TemporaryDirectory:
    for parent in (tempfile.gettempdir(), str(Path.home())):
        if os.name != "posix" or len(parent) <= LONGEST_PARENT:
            return tempfile.TemporaryDirectory(prefix="ray-", dir=parent, ignore_cleanup_errors=True)
    raise ValueError(
        f"Ray needs a folder of at most {LONGEST_PARENT} characters, and {tempfile.gettempdir()} has more. "
        "Let TMPDIR name a shorter one."
    )
