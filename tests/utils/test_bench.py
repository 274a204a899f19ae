"""Order and statistics of timings, memory of a child, sizes, the machine's limits, the lock."""

import multiprocessing
import os
import sys
import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils import bench


def allocate(megabytes: int) -> None:
    np.ones(megabytes * 125_000)


def fail() -> None:
    raise ValueError("no such model")


def hold(lock: str, acquired, release) -> None:
    with bench.exclusive(lock, busy_percent=100):
        acquired.set()
        release.wait(30)


@pytest.fixture(autouse=True)
def as_without_tests(monkeypatch) -> None:
    """Tests run with BENCH_ONCE, but what is tested here is how a benchmark runs."""
    monkeypatch.delenv(bench.ONCE, raising=False)


def test_in_tests_every_call_is_timed_once_and_nobody_waits(monkeypatch, tmp_path):
    calls: list[str] = []
    monkeypatch.setenv(bench.ONCE, "1")
    with bench.exclusive(tmp_path / "lock"), bench.exclusive(tmp_path / "lock"):
        timings = bench.interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=9)
    assert calls == ["a", "b"] and [len(timing.samples) for timing in timings.values()] == [1, 1]


def test_in_tests_a_notebook_shows_the_speed_that_is_in_its_results(monkeypatch, tmp_path):
    def measure(rounds: int) -> list[dict]:
        return [{"rounds": rounds}]

    measure.__module__ = "notebooks.toy.measuring.bench"
    monkeypatch.setattr(bench.paths, "ROOT", tmp_path)
    live = bench.live(measure)
    monkeypatch.setenv(bench.ONCE, "1")
    assert live(3) == [{"rounds": 3}]  # it has no results yet
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "toy.json").write_text('{"speed": [{"rounds": 9}]}', encoding="utf-8")
    assert live(3) == [{"rounds": 9}]
    monkeypatch.delenv(bench.ONCE)
    assert live(rounds=4) == [{"rounds": 4}]


def test_a_module_that_is_run_can_have_what_is_measured_live(monkeypatch):
    def measure():
        return [{"rounds": 1}]

    measure.__module__ = "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="notebooks.toy.measuring"))
    assert bench.live(measure)() == [{"rounds": 1}]


def test_interleave_takes_turns_and_rotates_the_first():
    calls: list[str] = []
    timings = bench.interleave({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=3, warmup=1)
    assert "".join(calls) == "aabbcc" + "aabbcc" + "bbccaa" + "ccaabb"
    assert {name: len(timing.samples) for name, timing in timings.items()} == {"a": 3, "b": 3, "c": 3}


def test_a_short_call_is_measured_warm_after_a_pause_and_a_long_one_at_once(monkeypatch):
    events, clock = [], [0.0]
    monkeypatch.setattr(bench, "sleep", lambda seconds: events.append(seconds))
    monkeypatch.setattr(bench, "perf_counter", lambda: clock[0])

    def call(name, seconds):
        events.append(name)
        clock[0] += seconds

    calls = {"short": lambda: call("short", 0.1), "long": lambda: call("long", 2)}
    timings = bench.interleave(calls, rounds=1, warmup=0)
    assert events == [bench.PAUSE_S, "short", "short", bench.PAUSE_S, "long"]
    assert (timings["short"].median_ms, timings["long"].median_ms) == pytest.approx((100, 2000))


def test_samples_are_milliseconds(monkeypatch):
    clock = iter([0, 9, 1.0, 1.002, 0, 9, 5.0, 5.004])
    monkeypatch.setattr(bench, "SHORT_MS", 9e6)
    monkeypatch.setattr(bench, "perf_counter", lambda: next(clock))
    timing = bench.interleave({"x": lambda: None}, rounds=2, warmup=0)["x"]
    assert timing.samples == pytest.approx((2.0, 4.0))
    assert timing.median_ms == pytest.approx(3.0)


def test_percentiles_of_known_samples():
    timing = bench.Timing.of(range(1, 12))
    assert (timing.median_ms, timing.p90_ms) == (6.0, 10.0)
    with pytest.raises(ValueError, match="at least one sample"):
        bench.Timing.of([])
    with pytest.raises(ValueError, match="0 callables"):
        bench.interleave({})


@given(st.lists(st.floats(0.001, 1e6), min_size=1))
def test_percentiles_lie_among_the_samples_whatever_their_order(samples):
    timing = bench.Timing.of(samples)
    bounds = [min(samples), timing.median_ms, timing.p90_ms, max(samples)]
    assert all(lower <= upper * (1 + 1e-12) for lower, upper in pairwise(bounds))
    assert sum(sample <= timing.p90_ms * (1 + 1e-12) for sample in samples) >= 0.9 * (len(samples) - 1)
    again = bench.Timing.of(reversed(samples))
    assert (again.median_ms, again.p90_ms) == (timing.median_ms, timing.p90_ms)


def test_row_gives_throughput_and_ratio():
    ours, torch = bench.Timing.of([20.0]), bench.Timing.of([50.0])
    row = bench.row("openvino", "INT8", "decode", ours, amount=4, unit="tokens/s", torch=torch, model_mb=7.0)
    assert (row["throughput"], row["unit"], row["ratio_to_torch"]) == (200.0, "tokens/s", 2.5)
    assert row["peak_rss_mb"] is None and "label" not in row
    assert bench.row("torch", "FP32", "decode", torch, label="speed only")["label"] == "speed only"
    assert bench.row("torch", "FP32", "decode", torch)["ratio_to_torch"] is None


def test_peak_memory_is_the_childs_own():
    ours = np.ones(100_000_000)  # 800 MB here must not count there
    small, large = bench.peak_rss_mb(allocate, 1), bench.peak_rss_mb(allocate, 300)
    assert 280 < large - small < 360
    assert small < 500 < ours.nbytes / 1e6


def test_peak_memory_passes_the_functions_error_on():
    with pytest.raises(ValueError, match="no such model"):
        bench.peak_rss_mb(fail)


def test_size_of_files_folders_and_ir(tmp_path):
    (tmp_path / "a.xml").write_bytes(b"x" * 1000)
    (tmp_path / "a.bin").write_bytes(b"x" * 499_000)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "other").write_bytes(b"x" * 500_000)
    assert bench.size_mb(tmp_path / "deep" / "other") == 0.5
    assert bench.size_mb(tmp_path / "a.bin") == 0.499
    assert bench.size_mb(tmp_path / "a.xml") == 0.5
    assert bench.size_mb(tmp_path) == 1.0


def test_limits_of_the_machine_are_of_a_believable_order():
    assert 0.5 < bench.read_bandwidth_gbs() < 5000
    assert 0.5 < bench.matmul_gflops("f32", size=512) < 1e6
    assert 0.5 < bench.matmul_gflops("bf16", size=512) < 1e6
    with pytest.raises(ValueError, match="'int8'"):
        bench.matmul_gflops("int8")


@pytest.mark.parametrize(("known", "faster"), [(["FP32", "BF16", "INT8"], "BF16"), (["FP32", "INT8"], "FP32")])
def test_pytorch_is_measured_in_bf16_only_where_the_processor_has_it(known, faster, monkeypatch):
    monkeypatch.setattr(ov.Core, "get_property", lambda *_: known)
    assert bench.torch_precision.__wrapped__() == faster
    monkeypatch.setattr(bench, "torch_precision", lambda: faster)
    assert bench.torch_precisions() == tuple(sorted({"FP32", faster}, reverse=True))


@pytest.mark.parametrize(("faster", "named"), [("BF16", "BF16"), ("FP32", "FP16")])
def test_rows_name_the_arithmetic_of_half_weights(faster, named, monkeypatch):
    monkeypatch.setattr(bench, "torch_precision", lambda: faster)
    assert [bench.arithmetic(precision) for precision in ("FP16", "INT8")] == [named, "INT8"]


def test_one_benchmark_at_a_time(tmp_path, capsys):
    lock = tmp_path / "bench.lock"
    context = multiprocessing.get_context("spawn")
    acquired, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(str(lock), acquired, release))
    other.start()
    try:
        assert acquired.wait(30)
        import threading

        threading.Timer(0.3, release.set).start()
        with bench.exclusive(lock, busy_percent=100) as load:
            assert release.is_set()
    finally:
        release.set()
        other.join(30)
    assert "Another benchmark is running" in capsys.readouterr().err
    assert 0 <= load["background_cpu_percent"] <= 100 and load["background_load"] >= 0


def test_the_lock_is_given_back_after_an_error(tmp_path, capsys):
    lock = tmp_path / "bench.lock"
    with pytest.raises(RuntimeError), bench.exclusive(lock, busy_percent=100):
        raise RuntimeError
    with bench.exclusive(lock, busy_percent=100):
        pass
    assert capsys.readouterr().out == ""


@pytest.fixture
def loads(monkeypatch) -> list[float]:
    """What other programs use of the cores, in percent, each time that it is asked. Nobody sleeps."""
    percents: list[float] = []
    monkeypatch.setattr(bench.psutil, "cpu_percent", lambda interval: percents.pop(0) if percents[1:] else percents[0])
    monkeypatch.setattr(bench, "sleep", lambda seconds: None)
    return percents


def test_a_benchmark_waits_for_a_quiet_machine(loads, tmp_path, capsys):
    loads += [90.0, 21.0, 20.0]
    with bench.exclusive(tmp_path / "lock") as load:
        assert load["background_cpu_percent"] == 20.0
    assert capsys.readouterr().err.count("Waiting for a quiet machine") == 2


def test_on_a_busy_machine_nothing_is_measured(loads, tmp_path, monkeypatch):
    loads += [57.0]
    clock = iter([0.0, 599.0, 601.0])
    monkeypatch.setattr(bench, "monotonic", lambda: next(clock))
    with (
        pytest.raises(bench.Busy, match="use 57 % of the cores, and at most 20 % are allowed"),
        bench.exclusive(tmp_path / "lock"),
    ):
        pytest.fail("it was measured")


# --- Settings in processes of their own ---------------------------------------------------------------------------


def sleeping(**seconds: float) -> dict:
    """Workloads that wait."""
    return {name: lambda wait=wait: time.sleep(wait) for name, wait in seconds.items()}


def slow() -> dict:
    return sleeping(first=0.06, second=0.02)


def fast() -> dict:
    return sleeping(first=0.02)


def broken() -> dict:
    raise ValueError("no such model")


PEER, INEXACT, OURS = (
    bench.Setting("torch eager", "FP32", slow),
    bench.Setting("torch eager", "BF16", fast, accepted=False),
    bench.Setting("openvino", "BF16", fast, model_mb=7.0),
)
WORK = [bench.Workload("first", 3, "tokens/s"), bench.Workload("second")]


def test_settings_are_compared_with_the_fastest_pytorch_that_is_good_enough():
    rows = bench.compare([PEER, INEXACT, OURS], WORK, rounds=3, label="speed only")
    assert [(row["runtime"], row["precision"], row["workload"]) for row in rows] == [
        ("torch eager", "FP32", "first"),
        ("torch eager", "BF16", "first"),
        ("openvino", "BF16", "first"),
        ("torch eager", "FP32", "second"),
    ]
    peer, inexact, ours, second = rows
    assert ours["ratio_to_torch"] == peer["median_ms"] / ours["median_ms"] > 1.5
    assert ours["ratio_at_precision"] == inexact["median_ms"] / ours["median_ms"] < 1.5
    assert peer["ratio_to_torch"] == peer["ratio_at_precision"] == second["ratio_to_torch"] == 1
    assert ours["median_ms"] >= 20 and ours["throughput"] == 3000 / ours["median_ms"] and ours["model_mb"] == 7
    assert all(row["label"] == "speed only" and row["peak_rss_mb"] > 20 for row in rows)


def processes(file: str) -> dict:
    def note() -> None:
        with open(file, "a", encoding="ascii") as stream:
            stream.write(f"{os.getpid()} ")

    return {"first": note}


def test_each_setting_has_a_process_and_they_alternate(tmp_path, monkeypatch):
    file = tmp_path / "calls"
    monkeypatch.setattr(bench, "PROCESS_PAUSE_S", 0)
    settings = [bench.Setting("openvino", precision, processes, (str(file),)) for precision in ("FP32", "INT8")]
    rows = bench.compare(settings, WORK[:1], rounds=2)
    a, _, b, _, *rest = file.read_text(encoding="ascii").split()
    assert a != b and str(os.getpid()) not in (a, b)
    assert rest == [a, a, b, b, b, b, a, a]  # each call is made twice, and the second round begins with the second one
    assert rows[0]["ratio_to_torch"] is rows[0]["ratio_at_precision"] is None


def test_settings_may_be_timed_one_after_the_other(tmp_path, monkeypatch):
    file = tmp_path / "calls"
    monkeypatch.setattr(bench, "PROCESS_PAUSE_S", 0)
    peer = bench.Setting("torch eager", "FP32", processes, (str(file),))
    rows = bench.compare([peer, OURS], WORK[:1], rounds=2, together=False)
    assert len(set(file.read_text(encoding="ascii").split())) == 1
    assert rows[1]["ratio_to_torch"] == rows[0]["median_ms"] / rows[1]["median_ms"]


def prepared(file: str) -> dict:
    def note(word: str) -> None:
        with open(file, "a", encoding="ascii") as stream:
            stream.write(word)

    return {"first": bench.Prepared(lambda: (note("p"), time.sleep(0.2)), lambda: note("c"))}


def test_what_prepares_a_call_comes_before_each_and_is_not_timed(tmp_path):
    file = tmp_path / "calls"
    rows = bench.compare([bench.Setting("openvino", "FP32", prepared, (str(file),))], WORK[:1], rounds=1, warmup=0)
    assert file.read_text(encoding="ascii") == "pcpc" and rows[0]["median_ms"] < 100


def test_in_tests_settings_share_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv(bench.ONCE, "1")
    settings = [bench.Setting("openvino", precision, processes, (str(tmp_path / "calls"),)) for precision in ("A", "B")]
    bench.compare(settings, WORK[:1], rounds=9)
    assert (tmp_path / "calls").read_text(encoding="ascii").split() == [str(os.getpid())] * 2
    assert not bench._STARTED


def test_a_setting_that_cannot_start_raises_its_error():
    with pytest.raises(ValueError, match="no such model"):
        bench.compare([bench.Setting("openvino", "FP32", broken)], WORK)


def noisy() -> dict:
    print("Loading ...", flush=True)
    return sleeping(first=0.001)


def dying() -> dict:
    print("the last words", flush=True)
    os._exit(7)


def test_what_a_setting_prints_is_shown_only_when_its_process_dies(capfd):
    bench.compare([bench.Setting("openvino", "FP32", noisy)], WORK[:1], rounds=1)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(RuntimeError, match="ended with status 7") as failure:
        bench.compare([bench.Setting("openvino", "FP32", dying)], WORK[:1])
    assert "the last words" in failure.value.__notes__[0]


def test_a_workload_that_no_setting_has_is_an_error(monkeypatch):
    monkeypatch.setenv(bench.ONCE, "1")
    with pytest.raises(ValueError, match="No setting has the workload 'third'. There are: first, second"):
        bench.compare([PEER, OURS], [bench.Workload("third")])


def timed(**medians: float) -> list[dict]:
    return [bench.row("openvino", "INT8", name, bench.Timing.of([median])) for name, median in medians.items()]


def test_stages_explain_the_whole():
    rows = [
        *timed(whole=100, encoder=20, step=7.5),
        *(row | {"precision": "FP32"} for row in timed(whole=90, encoder=20)),
    ]
    parts = {"encoder": 1, "step": 10}
    name = "tiny, stages together, share of the whole, openvino INT8"
    assert bench.stage_shares(rows, "whole", parts, "tiny") == {name: 0.95}  # FP32 lacks a stage
    bench.explain(rows, "whole", parts)
    with pytest.raises(ValueError, match="stages of openvino INT8 take 0.35 of whole .* longest is encoder with 20 ms"):
        bench.explain(rows, "whole", parts | {"step": 2})
    assert bench.stage_shares(rows, "whole", parts | {"step": 2}, "tiny") == {name: 0.35}
    with pytest.raises(ValueError, match="No setting has 'whole' and all its stages: encoder, vocoder"):
        bench.explain(rows, "whole", {"encoder": 1, "vocoder": 1})


def test_a_stage_that_a_precision_does_not_change_is_the_one_of_the_next_wider():
    def rows_at(precision: str, **medians: float) -> list[dict]:
        return [row | {"precision": precision} for row in timed(**medians)]

    rows = rows_at("INT4", whole=50) + rows_at("FP32", whole=100, encoder=60, decoder=41)
    rows += rows_at("INT8", whole=60, encoder=15) + rows_at("BF16", whole=70, decoder=40, encoder=30)
    shares = bench.stage_shares(rows, "whole", {"encoder": 1, "decoder": 1}, "tiny")
    found = {name.rpartition(" ")[2]: share for name, share in shares.items()}
    assert found == {"INT4": 1.1, "FP32": 1.01, "INT8": 0.92, "BF16": 1.0}


def test_machine():
    machine = bench.machine()
    assert set(machine) == {"cpu", "cores", "ram_gb", "os"}
    assert machine["cpu"] and machine["cores"] >= 1 and machine["ram_gb"] > 0.5
