"""The server as a process with the real tiny model: the unmodified clients, memory, exact tokens."""

import subprocess
import sys
import time
from pathlib import Path

import ollama
import psutil
import pytest

from notebooks.ollama_openvino import convert, measuring
from notebooks.ollama_openvino.__main__ import address, main
from notebooks.ollama_openvino.pipeline import Modelfile, write
from notebooks.ollama_openvino.server import install, serve
from tests.utils.serving.fakes import wait_for
from utils.serving.process import ServerFailed

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def ir() -> Path:
    return convert.prepare("tiny", "INT4")


@pytest.fixture(scope="module")
def server(tmp_path_factory, ir):
    with serve(tmp_path_factory.mktemp("store")) as running:
        install(running.host, "smollm2", ir)
        yield running


@pytest.fixture
def client(server) -> ollama.Client:
    return measuring.client(server.host)


def steady_rss(process: psutil.Process) -> int:
    """The bytes in memory once they are the same for a second: an engine gives its memory back in a thread."""
    readings = [process.memory_info().rss]

    def same() -> bool:
        time.sleep(0.5)
        readings.append(process.memory_info().rss)
        return len(readings) > 2 and max(readings[-3:]) - min(readings[-3:]) < 1e6

    assert wait_for(same), readings
    return readings[-1]


def test_it_answers_on_loopback_only(server, client):
    assert "Paris" in client.chat("smollm2", QUESTION, options=measuring.GREEDY).message.content
    listening = [c.laddr for c in psutil.Process(server.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening] == ["127.0.0.1"]


def test_the_same_seed_gives_the_same_text(client):
    def tell(seed: int) -> str:
        options = {"temperature": 1.5, "top_k": 0, "top_p": 1, "seed": seed, "num_predict": 16}
        return client.generate("smollm2", "Once upon a time", raw=True, options=options).response

    alone = [tell(1), tell(2), tell(1)]
    assert alone[0] == alone[2] != alone[1]


def test_format_makes_json_that_follows_the_schema(server, client):
    replies = measuring.json_replies(server.host, "smollm2", measuring.JSON_QUESTIONS[:2], measuring.SCHEMA)
    assert [measuring.is_valid(reply) for reply in replies] == [True, True]
    loose = client.chat("smollm2", QUESTION, format="json", options=measuring.GREEDY | {"num_predict": 4})
    assert loose.message.content.lstrip().startswith("{")


def test_a_schema_that_is_none_is_an_error(client):
    with pytest.raises(ollama.ResponseError, match="format is no JSON schema"):
        client.chat("smollm2", QUESTION, format={"type": "nonsense"})
    assert client.chat("smollm2", QUESTION, options={"num_predict": 2}).done, "other answers go on"


def test_langchain_talks_to_it(server):
    from langchain_ollama import ChatOllama, OllamaLLM

    options = {"base_url": server.host, "temperature": 0, "client_kwargs": {"trust_env": False}}
    chat = ChatOllama(model="smollm2", num_predict=16, **options)
    assert "Paris" in chat.invoke(QUESTION[0]["content"]).content
    assert len(list(chat.stream(QUESTION[0]["content"]))) > 3
    assert OllamaLLM(model="smollm2", num_predict=4, **options).invoke("Hello")


def test_a_gguf_file_answers_as_it_is(server, client):
    install(server.host, "gguf", convert.gguf_file())
    assert "Paris" in client.chat("gguf", QUESTION, options=measuring.GREEDY).message.content
    assert client.show("gguf").details.format == "gguf"


def test_memory_comes_back_when_a_model_is_unloaded(server, client):
    """In each of three turns, although the server remembers requests that have ended."""
    process = psutil.Process(server.pid)
    for model in client.ps().models:
        client.generate(model.model, keep_alive=0)
    assert wait_for(lambda: client.ps().models == [])
    for _ in range(3):
        low = steady_rss(process)
        client.chat("smollm2", QUESTION, options={"num_predict": 8})
        high = process.memory_info().rss
        assert high - low > 50e6
        client.generate("smollm2", keep_alive=0)
        most = high - (high - low) // 2
        assert wait_for(lambda most=most: process.memory_info().rss < most), (low, high, process.memory_info().rss)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:11434"),
        ("localhost:8000", "http://localhost:8000"),
        ("https://example.org/ollama", "https://example.org/ollama"),
    ],
)
def test_a_host_is_read_as_ollama_reads_it(host, url):
    assert address(host) == url


def test_the_commands_do_what_those_of_ollama_do(server, ir, tmp_path, capsys):
    assert main(["pack", str(ir), str(tmp_path / "smollm2.tar.gz")]) == 0
    file = Modelfile("smollm2.tar.gz", "OpenVINO", "CPU", {"temperature": 0.0}, system="Answer in one word.")
    (tmp_path / "Modelfile").write_text(write(file), encoding="utf-8")
    host = ["--host", server.host]
    assert main(["create", "brief", "-f", str(tmp_path / "Modelfile"), *host]) == 0
    assert "success" in capsys.readouterr().out
    assert main(["run", "brief", "What is the capital of France?", *host]) == 0
    assert "Paris" in capsys.readouterr().out
    assert main(["ps", *host]) == 0 and main(["list", *host]) == 0 and main(["show", "brief", *host]) == 0
    shown = capsys.readouterr().out
    assert "brief:latest" in shown and "InferDevice CPU" in shown and "SYSTEM Answer in one word." in shown
    assert main(["stop", "brief", *host]) == 0 and main(["rm", "brief", *host]) == 0
    assert main(["run", "brief", "x", *host]) == 1 and "not found" in capsys.readouterr().err
    (tmp_path / "Modelfile").write_text("FROM none.tar.gz", encoding="utf-8")
    assert main(["create", "none", "-f", str(tmp_path / "Modelfile"), *host]) == 1
    assert "none.tar.gz is missing" in capsys.readouterr().err
    (tmp_path / "Modelfile").write_text("FROM x\nTEMPLATE {{ .Prompt }}", encoding="utf-8")
    assert main(["create", "none", "-f", str(tmp_path / "Modelfile"), *host]) == 1
    assert "TEMPLATE is not supported" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_an_error(client, server, ir, tmp_path, capsys):
    assert main(["pack", str(ir), str(tmp_path / "a.tar.gz")]) == 0
    (tmp_path / "Modelfile").write_text('FROM a.tar.gz\nInferDevice "NONE"', encoding="utf-8")
    assert main(["create", "odd", "-f", str(tmp_path / "Modelfile"), "--host", server.host]) == 0
    with pytest.raises(ollama.ResponseError, match="odd:latest cannot be loaded on NONE"):
        client.chat("odd", QUESTION)


def test_a_second_server_on_the_same_store_is_refused(server):
    with pytest.raises(ServerFailed, match="Another server uses"), serve(server.folder):
        pass


def test_a_server_ends_with_its_block_and_keeps_its_models(tmp_path, package):
    with serve(tmp_path / "store") as one:
        install(one.host, "toy", package)
    assert not psutil.pid_exists(one.pid) or psutil.Process(one.pid).status() == psutil.STATUS_ZOMBIE
    with serve(tmp_path / "store") as two:
        assert [model.model for model in measuring.client(two.host).list().models] == ["toy:latest"]


def test_the_command_prints_its_address(tmp_path):
    command = [sys.executable, "-m", "notebooks.ollama_openvino", "serve", str(tmp_path / "store"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline().decode().startswith("http://127.0.0.1:")
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()
