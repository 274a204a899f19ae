"""The load generator counts right against a scripted server, and its rows hold together."""

import json
import re
import threading

import pytest

from notebooks.deepseek_serving.measuring import bench, runtimes
from notebooks.deepseek_serving.measuring.bench import OURS, TORCH, Load, Target
from tests.deepseek_serving.scripted import Scripted, event
from utils import report
from utils.paths import ROOT

ROLE = event({"role": "assistant", "content": None})
DONE = b"data: [DONE]\n\n"


def usage(tokens):
    return event(usage={"prompt_tokens": 11, "completion_tokens": tokens})


class Counting:
    """Answers five tokens; remembers how many requests were under way together."""

    def __init__(self, full: int):
        self.now = self.most = 0
        self.lock, self.all_here = threading.Lock(), threading.Barrier(full)

    def __call__(self, handler, body):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.all_here.wait(10)
        with self.lock:
            self.now -= 1
        handler.stream(ROLE, event({"content": "a"}), event({"content": "b"}, "length"), usage(5), DONE)


def test_as_many_requests_are_under_way_as_there_are_clients():
    answer = Counting(3)
    with Scripted(answer) as server:
        load = bench.run_load(Target(f"{server.url}/v3", "tiny"), 3, bench.questions(6), 5)
    assert answer.most == 3 and len(server.requests) == 6
    assert (load.clients, load.prompt_tokens, load.completion_tokens) == (3, 66, 30)
    assert len(load.first_token_s) == 6 and all(0 < first < load.seconds for first in load.first_token_s)
    assert load.tokens_per_second == pytest.approx(30 / load.seconds)
    path, _, body = server.requests[0]
    assert path == "/v3/chat/completions"
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (5, 0, True)


def test_a_server_that_does_not_know_ignore_eos_is_not_asked_for_it():
    with Scripted(Counting(1)) as server:
        bench.run_load(Target(f"{server.url}/v1", "tiny", exact_length=False), 1, bench.questions(1))
    assert "ignore_eos" not in server.requests[0][2]


def test_the_time_to_the_first_text_is_not_that_of_the_role():
    seen = threading.Event()

    def late(handler, body):
        handler.stream(ROLE, whole=False)
        seen.wait(0.2)
        piece = event({"content": "a"}, "stop") + usage(1) + DONE
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n0\r\n\r\n")

    with Scripted(late) as server:
        load = bench.run_load(Target(f"{server.url}/v3", "tiny"), 1, bench.questions(1))
    assert load.first_token_s[0] >= 0.19


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda handler, body: handler.reply(503, {"error": "busy"}), "answered HTTP/1.1 503"),
        (lambda handler, body: handler.stream(ROLE, event({"content": "a"}), whole=False), "broke off a stream"),
        (lambda handler, body: handler.stream(ROLE, event({"content": "a"}, "stop"), DONE), "sent no usage"),
    ],
)
def test_a_failure_is_not_counted_as_speed(answer, message):
    with Scripted(answer) as server, pytest.raises(RuntimeError, match=message):
        bench.run_load(Target(f"{server.url}/v3", "tiny"), 1, bench.questions(1))


def test_questions_share_their_beginning_and_differ_after_it():
    conversations = bench.questions(50)
    assert len({str(system) for system, _ in conversations}) == 1
    assert len(conversations[0][0]["content"]) > 800
    assert len({user["content"] for _, user in conversations}) == 50
    assert bench.questions(5, seed=1) != bench.questions(5, seed=2)


def test_rows_give_speed_waiting_time_and_the_ratio_to_the_peer(capsys):
    loads = {
        (OURS, "INT4", "prefix caching off"): [Load(4, 2.0, (0.1, 0.2, 0.3), 40, 400), Load(4, 1.0, (0.4,), 40, 600)],
        (TORCH, "BF16", ""): [Load(4, 4.0, (1.0,), 40, 200)],
    }
    ours, theirs = bench.rows(loads, answer=32)
    assert ours["workload"] == "4 clients, 32 tokens each"
    assert (ours["throughput"], ours["unit"], ours["ratio_to_torch"]) == (400, "tokens/s", 8)
    assert (ours["median_ms"], theirs["ratio_to_torch"]) == (250, 1)
    assert ours["label"] == "prefix caching off" and "label" not in theirs
    p99 = "397 openvino INT4, prefix caching off; 1000 transformers serve BF16"
    assert bench.p99_note(loads, answer=32) == {"first token, p99 in ms, 4 clients, 32 tokens each": p99}


def test_servers_with_the_same_load_share_a_workload():
    for name in ("results/deepseek_serving.json", "results/bench/deepseek_serving.json"):
        rows = report.load(ROOT / name)["speed"]
        assert all(re.fullmatch(r"\d+ clients?, \d+ tokens each", row["workload"]) for row in rows)
        assert {row.get("label", "") for row in rows} <= {"", "prefix caching off"}
        one = [row for row in rows if row["workload"].startswith("1 client,")]
        assert {OURS, TORCH} <= {row["runtime"] for row in one}


def test_the_soak_is_one_line():
    results = {"pass": True, "minutes": 3.0, "clients": 24, "requests": 1323, "aborted_by_clients": 511, "failed": 0}
    results |= {"generated_tokens": 39851, "leaked": [], "memory_mb": 2715, "memory_growth_mb": 0.4}
    text = bench.soak_text(results | {"memory_growth_allowed_mb": 6.4})
    assert (
        text.startswith("passes: 3 minutes with 24 clients, 1,323 requests, 511 of them aborted") and "\n" not in text
    )
    failing = results | {"memory_growth_allowed_mb": 0.1, "pass": False, "leaked": ["memory_growth_mb"]}
    assert bench.soak_text(failing).startswith("FAILS") and "leaked: memory_growth_mb;" in bench.soak_text(failing)


def test_every_server_is_loaded_in_every_round_and_warmed_up_first():
    with Scripted(Counting(1)) as one, Scripted(Counting(1)) as two:
        servers = {("a", "x", ""): Target(f"{one.url}/v3", "t"), ("b", "x", ""): Target(f"{two.url}/v3", "t")}
        found = bench.measure(servers, clients=1, rounds=2, requests=3)
    assert [len(runs) for runs in found.values()] == [2, 2]
    assert len(one.requests) == len(two.requests) == 1 + 2 * 3
    questions = [body["messages"][1]["content"] for _, _, body in one.requests]
    assert len(set(questions)) == 7, "a question asked again would be answered from the cache"


def test_a_llama_server_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=re.escape("none is no program")):
        runtimes.find_llama()
    monkeypatch.delenv("LLAMA_SERVER")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert runtimes.find_llama() is None


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
