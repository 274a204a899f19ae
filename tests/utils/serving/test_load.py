"""The load generator counts right against a scripted server, and its rows hold together."""

import json
import re
import threading
from time import perf_counter

import pytest

from notebooks.deepseek_serving.convert import checkpoint_folder
from tests.deepseek_serving.scripted import Scripted, event
from utils.serving import load as serving
from utils.serving import peers
from utils.serving.load import EAGER, TORCH, Load, Target

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
        load = serving.run_load(Target(f"{server.url}/v3", "tiny"), 3, serving.questions(6), 5)
    assert answer.most == 3 and len(server.requests) == 6
    assert (load.clients, load.prompt_tokens, load.completion_tokens) == (3, 66, 30)
    assert len(load.first_token_s) == 6 and all(0 < first < load.seconds for first in load.first_token_s)
    assert load.tokens_per_second == pytest.approx(30 / load.seconds)
    path, _, body = server.requests[0]
    assert path == "/v3/chat/completions"
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (5, 0, True)


def test_a_server_that_does_not_know_ignore_eos_is_not_asked_for_it():
    with Scripted(Counting(1)) as server:
        serving.run_load(Target(f"{server.url}/v1", "tiny", exact_length=False), 1, serving.questions(1))
    assert "ignore_eos" not in server.requests[0][2]


def test_the_time_to_the_first_text_is_not_that_of_the_role():
    seen = threading.Event()

    def late(handler, body):
        handler.stream(ROLE, whole=False)
        seen.wait(0.2)
        piece = event({"content": "a"}, "stop") + usage(1) + DONE
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n0\r\n\r\n")

    with Scripted(late) as server:
        load = serving.run_load(Target(f"{server.url}/v3", "tiny"), 1, serving.questions(1))
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
        serving.run_load(Target(f"{server.url}/v3", "tiny"), 1, serving.questions(1))


def test_questions_share_their_beginning_and_differ_after_it():
    conversations = serving.questions(50)
    assert len({str(system) for system, _ in conversations}) == 1
    assert len(conversations[0][0]["content"]) > 800
    assert len({user["content"] for _, user in conversations}) == 50
    assert serving.questions(5, seed=1) != serving.questions(5, seed=2)


def test_rows_give_speed_waiting_time_and_the_ratio_to_the_peer(capsys):
    loads = {
        ("openvino", "INT4", "prefix caching off"): [
            Load(4, 2.0, (0.1, 0.2, 0.3), 40, 400),
            Load(4, 1.0, (0.4,), 40, 600),
        ],
        (TORCH, "BF16", ""): [Load(4, 4.0, (1.0,), 40, 200)],
    }
    ours, theirs = serving.rows(loads, answer=32)
    assert ours["workload"] == "4 clients, 32 tokens each"
    assert (ours["throughput"], ours["unit"], ours["ratio_to_torch"]) == (400, "tokens/s", 8)
    assert (ours["median_ms"], theirs["ratio_to_torch"]) == (250, 1)
    assert ours["label"] == "prefix caching off" and "label" not in theirs
    p99 = "397 openvino INT4, prefix caching off; 1000 transformers serve BF16"
    assert serving.p99_note(loads, answer=32) == {"first token, p99 in ms, 4 clients, 32 tokens each": p99}


@pytest.mark.parametrize("faster", [EAGER, TORCH])
def test_the_ratio_is_to_the_faster_pytorch(faster):
    loads = {(runtime, "BF16", ""): [Load(1, 2.0, (0.1,), 40, 100)] for runtime in ("openvino", EAGER, TORCH)}
    loads[faster, "BF16", ""] = [Load(1, 1.0, (0.1,), 40, 100)]
    ratios = {row["runtime"]: row["ratio_to_torch"] for row in serving.rows(loads)}
    assert ratios == {"openvino": 0.5, EAGER: 0.5, TORCH: 0.5} | {faster: 1}


def test_a_model_without_a_server_answers_one_client():
    asked = []

    def model(messages, answer):
        asked.append(messages)
        return 0.25, 11, answer

    load = serving.run_load(model, 1, serving.questions(3), 5)
    assert (load.first_token_s, load.prompt_tokens, load.completion_tokens) == ((0.25,) * 3, 33, 15)
    assert asked == serving.questions(3)
    with pytest.raises(ValueError, match="one client at a time. Give it 1 client, not 2"):
        serving.run_load(model, 2, serving.questions(3), 5)


def test_pytorch_without_a_server_generates_all_tokens_in_a_process_of_its_own():
    from transformers import AutoTokenizer

    folder, messages = checkpoint_folder("tiny"), serving.questions(1)[0]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    with peers.torch_eager(folder, "FP32") as model:
        begin = perf_counter()
        first_token_s, prompt_tokens, completion_tokens = model(messages, 4)
        assert 0 < first_token_s < perf_counter() - begin
    assert (prompt_tokens, completion_tokens) == (len(prompt["input_ids"]), 4)


def test_every_server_is_loaded_in_every_round_and_warmed_up_first():
    with Scripted(Counting(1)) as one, Scripted(Counting(1)) as two:
        servers = {("a", "x", ""): Target(f"{one.url}/v3", "t"), ("b", "x", ""): Target(f"{two.url}/v3", "t")}
        found = serving.measure(servers, clients=1, rounds=2, requests=3)
    assert [len(runs) for runs in found.values()] == [2, 2]
    assert len(one.requests) == len(two.requests) == 1 + 2 * 3
    questions = [body["messages"][1]["content"] for _, _, body in one.requests]
    assert len(set(questions)) == 7, "a question asked again would be answered from the cache"


def test_a_llama_server_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=re.escape("none is no program")):
        peers.find_llama()
    monkeypatch.delenv("LLAMA_SERVER")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert peers.find_llama() is None


def test_a_server_with_the_interface_of_ollama_is_asked_in_its_way():
    def answer(handler, body):
        lines = [{"message": {"content": text}, "done": False} for text in ("", "a", "b")]
        lines.append({"message": {"content": ""}, "done": True, "prompt_eval_count": 11, "eval_count": 5})
        handler.stream(*[json.dumps(line).encode() + b"\n" for line in lines])

    with Scripted(answer) as server:
        load = serving.run_load(Target(server.url, "tiny", ollama=True), 2, serving.questions(4), 5)
    assert (load.prompt_tokens, load.completion_tokens) == (44, 20)
    path, _, body = server.requests[0]
    assert path == "/api/chat" and body["options"] == {"num_predict": 5, "temperature": 0}
