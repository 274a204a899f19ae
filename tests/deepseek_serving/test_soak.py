"""The soak: it asks, hangs up, and tells what was left over. Its long run is `python -m ...soak`, outside the tests."""

import json

import pytest

from notebooks.deepseek_serving import server, soak

CLEAN = {
    "failed": 0,
    "left_in_flight": 0,
    "left_in_engine": 0,
    "new_threads": 1,
    "new_connections": 0,
    "memory_growth_mb": 3.0,
}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(server, "MODULE", "tests.deepseek_serving.fake_server")


def test_a_short_soak_leaves_nothing_over(toy, capsys):
    assert soak.main([str(toy), "--minutes", "0.06", "--clients", "6"]) == 0
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
        ("new_threads", soak.GROWTH_THREADS + 1),
        ("new_connections", 1),
        ("memory_growth_mb", soak.GROWTH_MB + 1),
    ],
)
def test_what_is_left_over_is_named(name, value):
    assert soak.leaked(CLEAN) == []
    assert soak.leaked(CLEAN | {name: value}) == [name]


def test_a_folder_that_is_no_repository_is_told(tmp_path, capsys):
    assert soak.main([str(tmp_path)]) == 1
    assert "config.json is missing" in capsys.readouterr().err
