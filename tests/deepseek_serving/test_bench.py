"""The stored rows hold together, and the soak test is a note."""

import json
import re
from contextlib import contextmanager

import pytest

from notebooks.deepseek_serving.measuring import bench
from notebooks.deepseek_serving.measuring.bench import EAGER, OURS, TORCH
from utils import report
from utils.paths import ROOT


def test_servers_with_the_same_load_share_a_workload():
    for name in ("results/deepseek_serving.json", "results/bench/deepseek_serving.json"):
        rows = report.load(ROOT / name)["speed"]
        assert all(re.fullmatch(r"\d+ clients?, \d+ tokens each", row["workload"]) for row in rows)
        assert {row.get("label", "") for row in rows} <= {"", "prefix caching off"}
        one = [row for row in rows if row["workload"].startswith("1 client,")]
        assert {OURS, TORCH} <= {row["runtime"] for row in one}


def test_pytorch_is_loaded_while_one_client_asks(monkeypatch, tmp_path):
    loaded, asked = [], {}

    @contextmanager
    def peer(folder, precision="all"):
        loaded.append(precision)
        yield "http://127.0.0.1:1"
        loaded.remove(precision)

    def measure(servers, clients, rounds, requests, answer):
        asked[clients] = {runtime for runtime, *_ in servers}, list(loaded)
        return {}

    monkeypatch.setattr(bench.peers, "transformers_serve", peer)
    monkeypatch.setattr(bench.peers, "torch_eager", peer)
    monkeypatch.setattr(bench.bench, "torch_precisions", lambda: ("FP32", "BF16"))
    monkeypatch.setattr(bench.convert, "checkpoint_folder", lambda model: tmp_path)
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "rows", lambda loads, answer: [])
    bench.live.__wrapped__("http://127.0.0.1:2", "tiny")
    assert asked == {1: ({OURS, TORCH, EAGER}, ["all", "FP32", "BF16"])} | {
        clients: ({OURS}, []) for clients in bench.CLIENTS[1:]
    }


def test_the_soak_is_one_line():
    results = {"pass": True, "minutes": 3.0, "clients": 24, "requests": 1323, "aborted_by_clients": 511, "failed": 0}
    results |= {"generated_tokens": 39851, "leaked": [], "memory_mb": 2715, "memory_growth_mb": 0.4}
    text = bench.soak_text(results | {"memory_growth_allowed_mb": 6.4})
    assert (
        text.startswith("passes: 3 minutes with 24 clients, 1,323 requests, 511 of them aborted") and "\n" not in text
    )
    failing = results | {"memory_growth_allowed_mb": 0.1, "pass": False, "leaked": ["memory_growth_mb"]}
    assert bench.soak_text(failing).startswith("FAILS") and "leaked: memory_growth_mb;" in bench.soak_text(failing)


def test_a_soak_alone_leaves_the_measured_speed_as_it_is(monkeypatch, tmp_path):
    before = json.loads(bench.RESULTS.read_text(encoding="utf-8"))
    before |= {"date": "2026-01-02", "notes": {"read bandwidth, GB/s": 65.3, "soak, pass": False, "soak, old": 1}}
    file = tmp_path / "deepseek_serving.json"
    file.write_text(json.dumps(before), encoding="utf-8")
    monkeypatch.setattr(bench, "RESULTS", file)
    monkeypatch.setattr(bench, "soak_notes", lambda: {"soak, pass": True})
    monkeypatch.setattr(bench, "everything", lambda: pytest.fail("the load was measured, too"))
    bench.main(["--soak"])
    after = json.loads(file.read_text(encoding="utf-8"))
    assert {**after, "notes": 0} == {**before, "notes": 0}
    assert after["notes"].pop("soak, on") > "2026-01-02" and after["notes"].pop("soak, processor")
    assert after["notes"] == {"read bandwidth, GB/s": 65.3, "soak, pass": True}
