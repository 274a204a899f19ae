"""A local Ray: replicas that answer while they are replaced, and offline jobs whose processes are killed."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray
from ray import serve

from notebooks.llm_distributed.measuring import scaling
from notebooks.llm_distributed.server import offline, replicas
from tests.llm_distributed import ray_driver
from tests.utils.serving.fakes import http, wait_for
from utils.paths import ROOT
from utils.ray_cluster.cluster import Cluster
from utils.serving.load import Target

COUNT = 48  # prompts
IN_FLIGHT = 2 * ray_driver.BATCH  # of both workers


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        yield running


@pytest.fixture(scope="module")
def model():
    return scaling.model_folder()


@pytest.fixture(scope="module")
def url(cluster, model):
    """Of a service whose number of replicas follows the load."""
    url = replicas.listen()
    serve.run(replicas.autoscaled(1, 2, target=1, patience_s=0.5).bind(scaling.settings(model, 2)), name=scaling.NAME)
    return url


@pytest.mark.skipif(sys.platform != "linux", reason="who listens is asked on Linux")
def test_no_port_for_metrics_is_open(cluster):
    marks = (str(Path(ray.__file__).parent), "ray::")  # in the command lines of its processes
    own = {each.pid for each in psutil.process_iter() if any(mark in " ".join(each.cmdline()) for mark in marks)}
    listening = {c.laddr.ip for c in psutil.net_connections("tcp") if c.pid in own and c.status == "LISTEN"}
    assert "127.0.0.2" in listening and "0.0.0.0" not in listening


def prompts_of(answers) -> list[str]:
    with answers.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    assert all(row["answer"] == row["prompt"].upper() for row in rows)
    return [row["prompt"] for row in rows]


def test_a_killed_worker_loses_nothing_and_repeats_only_its_own_batch(cluster, tmp_path):
    log = tmp_path / "begun"
    with scaling.killing(log, after=3):
        answers = ray_driver.run(tmp_path, COUNT)
    assert prompts_of(answers) == scaling.sums(COUNT)
    generated = sum(count for _, count in scaling.begun(log))
    assert len({pid for pid, _ in scaling.begun(log)}) == 3  # two workers, and one in place of the killed one
    assert COUNT < generated <= COUNT + ray_driver.BATCH


def test_a_killed_driver_loses_nothing_that_was_written(cluster, tmp_path, monkeypatch):
    log, parts = tmp_path / "begun", tmp_path / "parts"
    command = [sys.executable, "-m", ray_driver.__name__, str(tmp_path), str(COUNT)]
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    driver = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        assert wait_for(lambda: len(list(parts.glob("*.jsonl"))) >= 3, 60)
    finally:
        driver.kill()
        driver.wait()
    # Its workers end a moment later.
    assert wait_for(lambda: not any(alive(pid) for pid, _ in scaling.begun(log)), 30)
    first = sum(count for _, count in scaling.begun(log))
    written = COUNT - len(offline.waiting(scaling.sums(COUNT), tmp_path, ray_driver.SETTINGS))
    assert 0 < written < COUNT and first - written <= IN_FLIGHT
    answers = ray_driver.run(tmp_path, COUNT)
    assert prompts_of(answers) == scaling.sums(COUNT)
    assert sum(count for _, count in scaling.begun(log)) - first == COUNT - written


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def replica_pids() -> set[int]:
    """The processes of the replicas: Ray gives them a title."""
    family = psutil.Process().children(recursive=True)
    return {process.pid for process in family if "ServeReplica" in " ".join(process.cmdline())}


def test_replicas_follow_the_load(url):
    scaling.wait_for(1)
    found = scaling.under_load(Target(f"{url}/v1", scaling.NAME), 4, lambda: scaling.wait_for(2), answer=8)
    assert found.errors == []


def test_a_rolling_restart_under_load_fails_no_request(url, model):
    body = {"model": scaling.NAME, "max_tokens": 16}
    body["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
    before = http.post(f"{url}/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    assert "Paris" in before
    old, target = replica_pids(), Target(f"{url}/v1", scaling.NAME)
    found = scaling.under_load(target, 4, lambda: scaling.deploy(model, 2), answer=8)
    assert found.errors == [] and found.whole >= 8
    assert old and len(replica_pids()) == 2 and not old & replica_pids()
    assert http.post(f"{url}/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] == before


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:0", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_an_error(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match=f"RAY_ADDRESS={address} is no host:port. Give host:port of a running head"):
        Cluster()


def test_an_address_without_a_cluster_is_an_error(monkeypatch):
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ValueError, match="No Ray cluster answers at RAY_ADDRESS=127.0.0.1:"):
            Cluster()


def test_a_long_temporary_folder_is_an_error(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + "t" * 60)
    monkeypatch.setenv("HOME", "/" + "h" * 60)
    if os.name == "posix":
        with pytest.raises(ValueError, match="Ray needs a folder of at most 26 characters, and /t+ has more"):
            Cluster()
