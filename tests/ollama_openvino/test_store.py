"""The store: models by name, blobs by digest, nothing half-written, nothing left behind."""

import os
import subprocess
import sys
import threading

import pytest

from notebooks.ollama_openvino.pipeline import PackageError
from notebooks.ollama_openvino.server.store import Store, StoreError
from tests.ollama_openvino.fakes import archive, member, toy_package
from utils.files import sha256
from utils.paths import ROOT


@pytest.fixture
def store(tmp_path):
    one = Store(tmp_path / "store")
    yield one
    one.close()


def put(store: Store, package) -> str:
    digest = store.add(package.read_bytes())
    assert digest == f"sha256:{sha256(package)}"
    return digest


def files(store: Store) -> set[str]:
    return {file.relative_to(store.folder).as_posix() for file in store.folder.rglob("*") if file.is_file()}


def test_a_model_comes_back_with_its_settings(store, package):
    digest = put(store, package)
    settings = {"system": "Be brief.", "parameters": {"top_k": 5}, "license": "MIT"}
    settings["messages"] = [{"role": "user", "content": "Hi"}]
    statuses = list(store.create("toy", digest, settings, "GPU"))
    assert statuses[0] == "verifying the package" and statuses[-1] == "success"
    model = store.get("toy")
    assert (model.name, model.format, model.kind, model.device) == ("toy:latest", "openvino", "completion", "GPU")
    assert (model.family, model.context, model.settings) == ("toy", 1000, settings)
    assert f"sha256:{model.package}" == digest and model.size == package.stat().st_size
    assert (store.folder / "manifests/registry.ollama.ai/library/toy/latest").is_file()
    assert [each.name for each in store.list()] == ["toy:latest"]


def test_names_may_have_a_namespace_and_a_tag(store, package):
    digest = put(store, package)
    for name in ("a", "a:v1", "me/a", "library/b:x.y"):
        list(store.create(name, digest, {}))
    assert {each.name for each in store.list()} == {"a:latest", "a:v1", "me/a:latest", "b:x.y"}


@pytest.mark.parametrize(
    "name",
    ["", "a b", "../a", "a/../b", "a/b/c", "a:b:c", "/a", "a:", ".a", "x" * 90, "a\n", "..:x"]
    + ["con", "a:NUL", "aux.x/a", "a.", "a:v1."],  # which are no files on Windows
)
def test_a_name_that_is_a_path_is_refused(store, name):
    with pytest.raises(StoreError, match="is no name of a model"):
        store.get(name)


def test_names_that_differ_in_case_are_one_model(store, package):
    digest = put(store, package)
    list(store.create("Toy:V1", digest, {"system": "first"}))
    list(store.create("toy:v1", digest, {"system": "second"}))
    assert [each.name for each in store.list()] == ["Toy:V1"]
    assert store.get("TOY:v1").settings == {"system": "second"}
    store.delete("tOY:V1")
    assert store.list() == []


def test_models_share_blobs_and_the_last_one_removes_them(store, package):
    digest = put(store, package)
    list(store.create("one", digest, {"system": "x"}))
    store.copy("one", "two")
    assert store.get("two").digest == store.get("one").digest
    store.delete("one")
    assert store.folder_of(store.get("two")).is_dir() and store.get("two").settings == {"system": "x"}
    store.delete("two")
    assert files(store) == {".lock"} or files(store) == set()
    assert list(store.unpacked.iterdir()) == []
    with pytest.raises(StoreError, match="'two:latest' not found") as caught:
        store.delete("two")
    assert caught.value.status == 404


def test_deleting_leaves_what_others_are_sending(store, package, tmp_path):
    list(store.create("one", put(store, package), {}))
    waiting = put(store, toy_package(tmp_path, "b"))
    store.delete("one")
    assert list(store.create("two", waiting, {}))[-1] == "success"


def test_a_failed_creation_keeps_the_earlier_model(store, package, tmp_path):
    list(store.create("toy", put(store, package), {}))
    hostile = archive(tmp_path / "hostile.tar.gz", member("../evil"))
    before = store.get("toy")
    for bad, error in ((put(store, hostile), PackageError), ("sha256:" + "0" * 64, StoreError), ("md5:1", StoreError)):
        with pytest.raises(error):
            list(store.create("toy", bad, {}))
    assert store.get("toy") == before and not (tmp_path / "evil").exists()


def test_a_blob_with_another_digest_is_not_kept(store, tmp_path):
    partial = store.partial_blob()
    partial.write_bytes(b"data")
    with pytest.raises(StoreError, match="was changed or cut short"):
        store.keep(partial, "sha256:" + "0" * 64, sha256(partial))
    damaged = store.blobs / ("sha256-" + "1" * 64)
    damaged.write_bytes(b"data")
    with pytest.raises(StoreError, match="was damaged and has been removed"):
        list(store.create("toy", "sha256:" + "1" * 64, {}))
    assert not damaged.exists()


def test_a_damaged_manifest_is_an_error_and_hides_no_other_model(store, package):
    digest = put(store, package)
    list(store.create("good", digest, {}))
    list(store.create("bad", digest, {}))
    (store.manifests / "library/bad/latest").write_text("{", encoding="utf-8")
    with pytest.raises(StoreError, match="manifest of bad:latest is damaged"):
        store.get("bad")
    assert [each.name for each in store.list()] == ["good:latest"]


def test_two_creations_of_one_name_leave_one_whole_model(store, package, tmp_path):
    digests = [put(store, package), put(store, toy_package(tmp_path, "b"))]
    results: list[list[str]] = []

    def make(digest: str) -> None:
        for _ in range(5):
            results.append(list(store.create("toy", digest, {"system": digest})))

    threads = [threading.Thread(target=make, args=(digest,)) for digest in digests for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model = store.get("toy")
    assert len(results) == 20 and {statuses[-1] for statuses in results} == {"success"}
    assert model.settings == {"system": f"sha256:{model.package}"} and store.folder_of(model).is_dir()


KILLED = """
import os, signal, sys
from pathlib import Path
from notebooks.ollama_openvino.pipeline import package
from notebooks.ollama_openvino.server.store import Store

store = Store(Path(sys.argv[1]))
data = Path(sys.argv[2]).read_bytes()
if sys.argv[3] == "upload":
    partial = store.partial_blob()
    partial.write_bytes(data[:100])
    os.kill(os.getpid(), signal.SIGKILL)
digest = store.add(data)
count = 0
real = package.tarfile.TarFile.extract
def extract(*a, **k):
    global count
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*a, **k)
package.tarfile.TarFile.extract = extract
list(store.create("toy", digest, {}))
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL.")
@pytest.mark.parametrize("where", ["upload", "unpacking"])
def test_a_server_that_is_killed_leaves_nothing_that_the_next_one_trusts(tmp_path, package, where):
    folder = tmp_path / "store"
    killed = subprocess.run([sys.executable, "-c", KILLED, folder, package, where], cwd=ROOT)
    assert killed.returncode == -9
    partial = [*folder.rglob(".partial-*")]
    assert partial, "it was killed in the middle"
    store = Store(folder)
    assert store.list() == [] and not [*folder.rglob(".partial-*")]
    assert list(store.blobs.iterdir()) == list(store.unpacked.iterdir()) == []
    assert list(store.create("toy", put(store, package), {}))[-1] == "success"
    store.close()


def test_one_server_at_a_time_uses_a_store(store):
    with pytest.raises(ValueError, match="Another server uses"):
        Store(store.folder)


def test_a_file_of_another_kind_is_refused(store):
    digest = store.add(b"PK\x03\x04 a zip file")
    with pytest.raises(PackageError, match="neither a tar.gz package"):
        list(store.create("toy", digest, {}))
    digest = store.add(b"GGUF and then nothing")
    with pytest.raises(PackageError, match="GGUF file cannot be read"):
        list(store.create("toy", digest, {}))
