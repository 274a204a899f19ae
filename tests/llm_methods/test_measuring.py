"""Measuring: promises of decoding methods on made answers, needles, and a command that goes on where it stopped."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from notebooks.llm_methods.measuring import __main__ as command
from notebooks.llm_methods.measuring import cache, checks, peers
from notebooks.llm_methods.measuring.decoding import PROMISES, Answer
from notebooks.llm_methods.measuring.store import Rows
from notebooks.llm_methods.pipeline import METHODS, named
from utils import bench
from utils.models import llm_speed

GREEDY = [Answer("The sky is blue. The sky is blue.", [1, 2, 3, 4, 1, 2, 3, 4])]


@pytest.mark.parametrize(
    ("name", "kept", "broken"),
    [
        ("greedy", GREEDY[0], Answer("", [1, 2])),
        ("prompt lookup", GREEDY[0], Answer("", [1, 2, 3, 4, 1, 2, 3, 5])),
        ("sampling", Answer("", [9]), GREEDY[0]),
        ("repetition penalty", Answer("", [1, 2, 3, 4, 5, 6]), GREEDY[0]),
        ("stop string", Answer("The sky is blue.", [1]), GREEDY[0]),
        ("regular expression", Answer("yes.", [1]), Answer("yes, it is.", [1])),
        ("grammar", Answer("green", [1]), Answer("purple", [1])),
        ("JSON schema", Answer('{"city": "Paris", "country": "France"}', [1]), Answer('{"city": "Paris"}', [1])),
        ("JSON schema", Answer('{"city": "Rome", "country": "Italy"}', [1]), Answer("Paris", [1])),
    ],
)
def test_a_promise_is_kept_or_broken(name, kept, broken):
    assert PROMISES[name](GREEDY, [kept], None)
    assert not PROMISES[name](GREEDY, [broken], None)


class FakeTokenizer:
    """A token for each word."""

    def decode(self, words):
        return " ".join(str(word) for word in words)


def test_needles_hide_a_number_at_a_depth(monkeypatch):
    import numpy as np
    import transformers

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda folder: FakeTokenizer())
    monkeypatch.setattr(cache, "tokenize", lambda folder, name: np.arange(300)[None])
    made = cache.needles(Path("none"), 1000, 4)
    assert len({number for _, number in made}) == 4
    for text, number in made:
        assert text.count(f"number of the lighthouse is {number}.") == 1
        assert text.endswith(cache.QUESTION) and 900 < len(text.split()) < 1000
    assert [text for text, _ in cache.needles(Path("none"), 1000, 4)] == [text for text, _ in made]


@pytest.fixture
def stubbed(monkeypatch, tmp_path):
    """The command with two methods that take no time; yields the rows and what was measured."""
    measured = []

    def jobs(model):
        for name in ("FP16", "NF4", "INT2"):
            yield named(name), lambda name=name: measured.append(name) or result(name)

    def result(name):
        if name == "INT2":
            raise RuntimeError("The process ended.\nstatus -11")
        return {"call": named(name).call, "perplexity": 1.0, "right": 2, "running_mb": 3}

    monkeypatch.setattr(command, "jobs", jobs)
    return Rows(tmp_path / "rows.json"), measured


def test_a_second_run_measures_only_what_is_left(stubbed):
    rows, measured = stubbed
    command.measure("tiny", rows, 1.0, kinds=["weights"])
    assert measured == ["FP16", "NF4", "INT2"]
    assert rows.get("weights", "INT2")["error"] == "RuntimeError: status -11"
    command.measure("tiny", Rows(rows.file), 1.0)
    assert measured == ["FP16", "NF4", "INT2"]
    command.measure("tiny", Rows(rows.file), 1.0, only="NF4")
    assert measured[3:] == ["NF4"]


def test_a_method_whose_call_has_changed_is_measured_from_nothing(stubbed):
    rows, measured = stubbed
    rows.add("weights", "NF4", {"call": "an older call", "perplexity": 9.0, "tokens_per_s": 50.0})
    command.measure("tiny", rows, 1.0)
    assert rows.get("weights", "NF4")["perplexity"] == 1.0 and "tokens_per_s" not in rows.get("weights", "NF4")


def test_no_method_begins_after_the_time_is_over(stubbed, capsys):
    rows, measured = stubbed
    command.measure("tiny", rows, 0.0)
    assert measured == [] and "3 methods are left" in capsys.readouterr().out


def test_an_unknown_method_is_an_error(stubbed):
    with pytest.raises(ValueError, match="There is no method 'INT9'"):
        command.measure("tiny", stubbed[0], 1.0, only="INT9")


def test_speed_rows_have_ratios_to_the_fastest_pytorch(tmp_path):
    rows = Rows(tmp_path / "rows.json")
    numbers = {"first_ms": 100.0, "first_p90_ms": 110.0, "decode_ms": 400.0, "decode_p90_ms": 410.0, "running_mb": 500}
    rows.add("peers", "openvino_genai FP16", numbers | {"model_mb": 270, "busy_percent": 55})
    rows.add("peers", "torch eager FP32", numbers | {"first_ms": 600.0, "model_mb": 540})
    rows.add("peers", "torch eager BF16", numbers | {"first_ms": 300.0, "model_mb": 540})
    made = checks.speed_rows(rows)
    assert [row["ratio_to_torch"] for row in made[:3]] == [3.0, 0.5, 1.0]
    assert made[0]["label"] == "55 % of the cores were busy" and "label" not in made[1]
    assert [row["throughput"] for row in made if "tokens after" in row["workload"]] == [80.0] * 3


def test_every_kind_has_a_function_and_only_methods_with_a_reason_are_left_out(monkeypatch):
    assert set(command.MEASURED_BY) == set(command.KINDS)
    monkeypatch.setattr(command.convert, "prepare", lambda *_: Path("base"))
    left_out = {method.name for method in METHODS} - {method.name for method, _ in command.jobs("tiny")}
    assert left_out == {method.name for method in METHODS if method.why}
    assert "EAGLE-3" in left_out


def test_missing_models_are_made_before_anything_is_timed(tmp_path, monkeypatch, capsys):
    rows, done = Rows(tmp_path / "rows.json"), []
    for name in ("FP16", "NF4", "GPTQ"):
        rows.add("weights", name, {"call": named(name).call, "model_mb": 1, "compress_seconds": 90})
    rows.add("weights", "INT2", {"call": "no", "error": "RuntimeError"})
    monkeypatch.setattr(command, "place", lambda model: rows.file)
    monkeypatch.setattr(command.convert, "prepare", lambda model, call, name: done.append(name))
    monkeypatch.setattr(command, "measure_speed", lambda *_: done.append("timed"))
    monkeypatch.setattr(command.sys, "argv", ["measuring", "--speed", "--busy"])
    assert command.main() == 0
    assert done == ["FP16", "NF4", "GPTQ", "timed"]
    out = capsys.readouterr().out
    assert "3 compressed models: those that are missing are made, 4 minutes for all." in out and "2/3 model: NF4" in out


def test_only_the_kinds_that_were_asked_for_are_timed(tmp_path, monkeypatch):
    """FP16 is timed first and last, and the peers need no compressed model."""
    rows, done = Rows(tmp_path / "rows.json"), []
    for name in ("FP16", "NF4"):
        rows.add("weights", name, {"call": named(name).call, "model_mb": 1})
    rows.add("cache", "u8", {"call": "{}"})
    speed = {"first_ms": 1.0, "decode_ms": 1.0, "tokens_per_s": 8.0}
    monkeypatch.setattr(command.convert, "prepare", lambda *_: Path("base"))
    monkeypatch.setattr(command.weights, "speed", lambda name, folder: done.append(name) or speed)
    monkeypatch.setattr(command.preflight, "in_child", lambda *_, what: done.append(what) or {})
    monkeypatch.setattr(command.peers, "measure", lambda model, rows: done.append("peers"))
    command.measure_speed("tiny", rows, kinds=[command.PEERS])
    assert done == ["peers"]
    command.measure_speed("tiny", rows, kinds=["weights"])
    assert done[1:] == ["FP16", "NF4", "FP16"] and rows.get("weights", "FP16")["tokens_per_s_at_the_end"] == 8.0
    command.measure_speed("tiny", rows, only="u8")
    assert done[4:] == ["u8, stateful", "u8, paged"]


def test_an_engine_that_fails_leaves_the_other_ones_result(monkeypatch):
    def in_child(function, folder, properties, what):
        if "stateful" in what:
            raise RuntimeError("Node with name 'layers.0' supports f32")
        return {"paged_perplexity": 20.9}

    monkeypatch.setattr(command.preflight, "in_child", in_child)
    row = command._cache(named("SAGE attention"), "tiny", Path("base"))
    assert row["paged_perplexity"] == 20.9 and row["paged_error"] is None
    assert row["stateful_error"] == "RuntimeError: Node supports f32"


def test_times_of_a_busy_machine_are_measured_again_on_a_quiet_one(stubbed, monkeypatch):
    rows, measured = stubbed
    prompt = named("full attention")
    monkeypatch.setattr(command, "jobs", lambda model: [(prompt, lambda: measured.append(prompt.name) or found)])
    found = {"call": prompt.call} | {f"recall_{length}": 8 for length in command.LENGTHS}
    for percent in (90, 50, 3, 0):
        monkeypatch.setattr(command.psutil, "cpu_percent", lambda interval, percent=percent: percent)
        command.measure("tiny", rows, 1.0)
    assert measured == [prompt.name] * 2 and rows.get("prompt", prompt.name)["busy_percent"] == 3


SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({{"status": "ok"}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(sys.argv[0] + ".log", "a") as log:
            print(len(asked["prompt"]), asked["n_predict"], asked["cache_prompt"], asked["ignore_eos"], file=log)
        self.reply({{"tokens_predicted": min(asked["n_predict"], 32)}})

    def reply(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
QUANTIZER = """#!{python}
import sys
open(sys.argv[3], "w").write(open(sys.argv[2]).read() + " " + sys.argv[4])
"""


@pytest.fixture
def llama(tmp_path, monkeypatch):
    """A folder with programs that behave as llama.cpp's do, and a file in place of a model."""
    for name, text in (("llama-server", SERVER), ("llama-quantize", QUANTIZER)):
        (tmp_path / name).write_text(text.format(python=sys.executable), encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "small.gguf").write_text("weights", encoding="utf-8")
    monkeypatch.setenv("MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "llama-server"))
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="the programs of the test are scripts with a first line for Unix")
def test_llama_cpp_runs_at_three_precisions_and_reads_each_prompt_whole(llama):
    settings = peers.llama_settings("small", llama / "small.gguf")
    assert [setting.precision for setting in settings] == ["Q4_0", "Q4_K_M", "Q8_0"]
    assert settings[1].arguments[1].read_text(encoding="utf-8") == "weights Q4_K_M"
    rows = bench.compare(settings[:1], llm_speed.WORKLOADS)
    assert [row["workload"] for row in rows] == [work.name for work in llm_speed.WORKLOADS]
    asked = (llama / "llama-server.log").read_text(encoding="utf-8").splitlines()
    assert set(asked) == {"512 1 False True", "16 32 False True"}


def test_rows_of_a_peer_that_this_machine_lacks_are_removed(tmp_path, monkeypatch):
    """They are another machine's, and its times would be compared with this one's."""
    settings = {kind: bench.Setting(kind, "FP32", dict, model_mb=1.0) for kind in ("ours", "torch eager", "onnx")}
    monkeypatch.setattr(peers, "convert", SimpleNamespace(
        checkpoint_folder=Path, prepare=lambda *_: Path(), MODELS={"tiny": {"checkpoint": "small"}}))  # fmt: skip
    monkeypatch.setattr(peers, "OWN", ["FP16"])
    monkeypatch.setattr(peers.llm_speed, "genai_setting", lambda *_: settings["ours"])
    monkeypatch.setattr(peers.llm_speed, "torch_settings", lambda _: [settings["torch eager"]])
    monkeypatch.setattr(peers.llm_speed, "onnx_folder", lambda *_: Path())
    monkeypatch.setattr(peers.llm_speed, "onnx_setting", lambda _: settings["onnx"])
    monkeypatch.setattr(peers, "resolve", Path)
    monkeypatch.setattr(peers, "llama_settings", lambda *_: [])
    monkeypatch.setattr(peers.weights, "timed", lambda setting: {"first_ms": 2.0, "running_mb": 3})
    rows = Rows(tmp_path / "rows.json")
    rows.add("peers", "torch eager BF16", {"first_ms": 1.0})
    rows.add("weights", "NF4", {"first_ms": 1.0})
    peers.measure("tiny", rows)
    names = [row["name"] for row in Rows(rows.file).rows.values()]
    assert names == ["NF4", "ours FP32", "torch eager FP32", "onnx FP32"]


def test_without_llama_cpp_a_note_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert peers.llama_settings("small", tmp_path / "small.gguf") == []
    rows = Rows(tmp_path / "rows.json")
    assert "no llama-server" in peers.left_out(rows)["left out"]
    rows.add("peers", "llama.cpp Q8_0", {"first_ms": 1.0})
    assert peers.left_out(rows) == {}
