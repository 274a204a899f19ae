"""The soak test reports what leaked. Its long run is `python -m notebooks.deepseek_serving.measuring.soak FOLDER`."""

import json

import pytest

from notebooks.deepseek_serving.measuring import soak
from notebooks.deepseek_serving.server import process, repository
from tests.deepseek_serving.fakes import toy_ir

CLEAN = {
    "failed": 0,
    "left_in_flight": 0,
    "left_in_engine": 0,
    "new_threads": 1,
    "new_connections": 0,
    "memory_growth_mb": 3.0,
    "memory_growth_allowed_mb": 4.0,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository served by the stand-in, quick enough for hundreds of requests in a second."""
    monkeypatch.setattr(process, "MODULE", "tests.deepseek_serving.fake_server")
    monkeypatch.setattr(soak, "_settled", lambda running, wait=soak._settled: wait(running, pause=0.1))
    monkeypatch.setenv("STEP_MS", "0.1")
    return repository.write(tmp_path / "toy", "toy", toy_ir(tmp_path / "ir"), max_num_batched_tokens=8)


def test_a_short_soak_leaves_nothing_over(folder, capsys):
    assert soak.main([str(folder), "--minutes", "0.06", "--clients", "12"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["pass"] is True and figures["leaked"] == []
    assert figures["aborted_by_clients"] > 0 and figures["requests"] > figures["aborted_by_clients"]
    assert figures["generated_tokens"] > 0 and figures["memory_mb"] > 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("failed", 1),
        ("left_in_flight", 1),
        ("left_in_engine", 2),
        ("new_threads", soak.MAX_NEW_THREADS + 1),
        ("new_connections", 1),
        ("memory_growth_mb", CLEAN["memory_growth_allowed_mb"] + 0.1),
    ],
)
def test_what_is_left_over_is_named(name, value):
    assert soak.leaked(CLEAN) == []
    assert soak.leaked(CLEAN | {name: value}) == [name]


def test_memory_that_is_lost_with_every_request_is_named(folder, monkeypatch):
    monkeypatch.setenv("LEAK_KB", "100")
    figures = soak.soak(folder, 0.06, clients=12)
    assert figures["leaked"] == ["memory_growth_mb"] and figures["pass"] is False


def test_a_megabyte_lost_in_a_hundred_requests_is_seen_among_changing_buffers():
    requests = [160 * i for i in range(9)]  # what three minutes give
    buffers = (0, 7, 3, 12, 5, 0, 12, 2, 7)
    allowed = soak.allowed_growth(requests[-1])
    assert soak.growth([(count, 1951 + count / 100) for count in requests]) == pytest.approx(12.8)
    assert soak.growth([(n, 1951 + n / 100 + more) for n, more in zip(requests, buffers, strict=True)]) > allowed
    assert soak.growth([(n, 1951 + more) for n, more in zip(requests, buffers, strict=True)]) < allowed
    assert soak.growth([(n, 1951 + 50 * (n > 1100)) for n in requests]) == 0, "what comes once is no leak"
    assert soak.growth([(5, 1951), (5, 1990)]) == 0, "no requests in between"


def test_a_folder_that_is_no_repository_is_reported(tmp_path, capsys):
    assert soak.main([str(tmp_path)]) == 1
    assert "config.json is missing" in capsys.readouterr().err
