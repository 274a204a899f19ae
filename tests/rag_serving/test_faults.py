"""Whatever breaks, a document is old or new, never half: crashes, many writers, a database that goes and comes back."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from notebooks.rag_serving.pipeline import DatabaseAway, Retriever, database, split
from tests.rag_serving import fakes
from tests.utils.serving.fakes import wait_for

TEXT = "The moon goes round the earth, and the earth goes round the sun. " * 12


def test_a_backend_that_is_killed_in_mid_copy_loses_nothing(retriever, url):
    retriever.ingest("moon", TEXT)
    before = retriever.store.counts()
    chunks = split(TEXT, retriever.embedder.count_tokens, 20, 4)
    vectors = retriever.embedder.documents([chunk.text for chunk in chunks])
    reached, go = threading.Event(), threading.Event()

    def halfway():
        for number, chunk in enumerate(chunks):
            if number == len(chunks) // 2:
                reached.set()
                go.wait(10)
            yield chunk

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(retriever.store.add, "moon", "another hash", halfway(), vectors)
        assert reached.wait(10)
        with psycopg.connect(url, autocommit=True) as connection:
            looking = (
                "select pid from pg_stat_activity where query ilike 'copy staged%' and datname = current_database()"
            )
            (pid,) = connection.execute(looking).fetchone()
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))  # SIGTERM kills at once on Windows
        go.set()
        with pytest.raises(DatabaseAway, match="Nothing was written"):
            writing.result(30)
    assert wait_for(lambda: _counts(retriever) == before, 60)
    assert [own.source for own in retriever.search("moon", 1)] == ["moon"]
    assert retriever.store.add("moon", "another hash", chunks, vectors) == "replaced"
    assert retriever.store.counts() == before


def _counts(retriever: Retriever) -> dict | None:
    try:
        return retriever.store.counts()
    except DatabaseAway:
        return None


def test_a_full_disk_loses_nothing(retriever, url):
    """A trigger raises the error that PostgreSQL raises for a full disk, at the fourth passage."""
    retriever.ingest("moon", TEXT)
    before = retriever.store.counts()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("""
            create function full_disk() returns trigger language plpgsql as $$ begin
                if new.ordinal = 3 then
                    raise disk_full using message = 'could not extend file: No space left on device';
                end if;
                return new;
            end $$
        """)
        connection.execute("create trigger full_disk before insert on chunk for each row execute function full_disk()")
        with pytest.raises(DatabaseAway, match="The disk of the database is full .*No space left.* Make space"):
            retriever.ingest("moon", f"{TEXT} New.")
        assert retriever.store.counts() == before
        assert [own.source for own in retriever.search("moon", 1)] == ["moon"]
        connection.execute("drop trigger full_disk on chunk")
    assert retriever.ingest("moon", TEXT) == "unchanged"
    assert retriever.ingest("moon", f"{TEXT} New.") == "replaced"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the folder's name is too long for the replica's socket")
def test_a_replica_answers_and_does_not_write(retriever, url, cluster):
    folder, programs = cluster.with_name("replica"), database._package().get_server(cluster).bin_path
    folder.mkdir(mode=0o700)
    shutil.chown(folder, cluster.stat().st_uid, cluster.stat().st_gid)
    command = {"check": True, "capture_output": True, **database._as_owner(cluster)}
    primary = [
        programs / "pg_basebackup",
        "--dbname",
        url,
        "--pgdata",
        folder,
        "--write-recovery-conf",
        "--checkpoint=fast",
    ]
    subprocess.run(primary, **command)
    control = [programs / "pg_ctl", "--pgdata", folder, "--wait", "--log", folder / "log"]
    # The copy has the lock of the primary's socket, so another port: it is a part of the socket's name.
    subprocess.run([*control, "--options", f"-h '' -p 5433 -k {folder}", "start"], **command)
    try:
        store = fakes.store(f"{url.partition('?')[0]}?host={folder}&port=5433")
        reading = Retriever(store, fakes.Embedder(), tokens=20, overlap=4)
        with pytest.raises(DatabaseAway, match="have not reached it yet. Try again"):
            store.counts()
        retriever.ingest("moon", TEXT)  # after the copy was made
        written = retriever.store.counts()
        assert wait_for(lambda: _counts(reading) == written, 60)
        assert reading.search("earth and sun", 5) == retriever.search("earth and sun", 5)
        for write in (lambda: reading.ingest("sun", TEXT), lambda: reading.delete("moon")):
            with pytest.raises(DatabaseAway, match="a replica, which only reads. Nothing was written"):
                write()
        store.close()
    finally:
        subprocess.run([*control, "--mode=fast", "stop"], **command)
    assert retriever.store.sources() == ["moon"]


def test_an_exception_in_the_middle_leaves_the_old_document(retriever):
    retriever.ingest("moon", TEXT)
    before = retriever.store.counts()

    def broken():
        yield from split(TEXT, retriever.embedder.count_tokens, 20, 4)[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retriever.store.add("moon", "another hash", broken(), retriever.embedder.documents(["a", "b", "c", "d"]))
    assert retriever.store.counts() == before
    assert retriever.ingest("moon", TEXT) == "unchanged"


def test_many_writers_of_the_same_documents_make_no_duplicates(url):
    documents = {f"document {number}": f"{TEXT} It has number {number}." for number in range(8)}
    stores = [fakes.store(url) for _ in range(4)]

    def write(store) -> list[str]:
        retriever = Retriever(store, fakes.Embedder(), tokens=20, overlap=4)
        return [retriever.ingest(source, text) for source, text in documents.items()]

    with ThreadPoolExecutor(4) as pool:
        said = [status for own in pool.map(write, stores) for status in own]
    assert said.count("new") == len(documents) and set(said) == {"new", "unchanged"}
    counts = stores[0].counts()
    assert counts["document"] == len(documents)
    alone = len(split(documents["document 0"], fakes.Embedder().count_tokens, 20, 4))
    assert counts["chunk"] == alone * len(documents)
    for store in stores:
        store.close()


def test_a_database_that_is_down_is_an_error_and_comes_back_without_a_restart(retriever, cluster):
    retriever.ingest("moon", TEXT)
    before = retriever.store.counts()
    database.stop(cluster)
    try:
        with pytest.raises(DatabaseAway, match="The database is not available .* Start it again"):
            retriever.search("moon")
        with pytest.raises(DatabaseAway):
            retriever.ingest("sun", TEXT)
    finally:
        database.embedded(cluster)
    assert retriever.store.counts() == before
    assert retriever.ingest("sun", TEXT) == "new"


def test_a_database_that_was_never_there_is_the_same_error(tmp_path):
    store = fakes.store(f"postgresql://postgres@/rag?host={tmp_path}")
    with pytest.raises(DatabaseAway):
        store.counts()
    store.close()


def test_an_interrupted_ingestion_goes_on_where_it_was(retriever):
    documents = {f"document {number}": f"{TEXT} {number}" for number in range(6)}
    for source in list(documents)[:3]:
        retriever.ingest(source, documents[source])
    said = [retriever.ingest(source, text) for source, text in documents.items()]
    assert said == ["unchanged"] * 3 + ["new"] * 3
