"""The server as a process: it starts, ends on every request to end, and never outlives its parent."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from notebooks.deepseek_serving.server import process as server
from notebooks.deepseek_serving.server import repository
from tests.deepseek_serving.fakes import http, wait_for

ROOT = Path(__file__).parents[2]
MODULE = "notebooks.deepseek_serving.server"
STAND_IN = "tests.deepseek_serving.fake_server"
PROMPT = [{"role": "user", "content": "Count from one to twenty in words."}]


@pytest.fixture(autouse=True)
def no_model_server(monkeypatch):
    """As if this machine had no Model Server."""
    monkeypatch.setattr(server.ovms, "find", lambda: None)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def chat(url: str, **changes) -> httpx.Response:
    body = {"model": "smollm2", "messages": PROMPT, "max_tokens": 24, "temperature": 0} | changes
    return http.post(f"{url}/v3/chat/completions", json=body, timeout=120)


@pytest.fixture(scope="module")
def running(tiny):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.ovms, "find", lambda: None)
        with server.serve(tiny, quiet=True) as one:
            yield one


def test_it_says_what_it_is_and_where_its_log_is(running):
    assert running.kind == "local" and running.title == "the local server (openvino-genai)"
    assert running.url.startswith("http://127.0.0.1:") and running.model == "smollm2"
    assert "Loaded smollm2 in" in running.log.read_text(encoding="utf-8")
    assert psutil.Process(running.pid).is_running()


def test_it_listens_on_loopback_only(running):
    listening = [c.laddr for c in psutil.Process(running.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening] == ["127.0.0.1"]


def test_greedy_text_over_http_is_that_of_the_same_pipeline_in_process(running, tiny):
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    options = repository.read(tiny).options
    scheduler.cache_size, scheduler.max_num_batched_tokens = options.cache_size, options.max_num_batched_tokens
    scheduler.enable_prefix_caching = options.enable_prefix_caching
    pipeline = openvino_genai.ContinuousBatchingPipeline(tiny / "smollm2", scheduler, "CPU")
    tokenizer, config = pipeline.get_tokenizer(), pipeline.get_config()
    config.max_new_tokens, config.do_sample = 24, False
    text = tokenizer.apply_chat_template(PROMPT, add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False).input_ids
    (result,) = pipeline.generate([ids], [config])
    found = chat(running.url).json()
    assert found["choices"][0]["message"]["content"] == tokenizer.decode(result.m_generation_ids[0])
    assert found["usage"]["completion_tokens"] == len(result.m_generation_ids[0])
    assert found["usage"]["prompt_tokens"] == ids.shape[1]


def test_many_clients_get_what_one_alone_gets(running):
    alone = chat(running.url, max_tokens=12).json()["choices"][0]["message"]["content"]
    replies: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: replies.append(chat(running.url, max_tokens=12).json()["choices"][0]["message"]["content"])
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == [alone] * 6


def test_a_client_that_leaves_frees_the_real_engine(running):
    def metric(name: str) -> float:
        lines = http.get(f"{running.url}/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(name + "{")).rsplit(" ", 1)[1])

    before = metric("llm_requests_aborted_total")
    body = {"model": "smollm2", "messages": PROMPT, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with http.stream("POST", f"{running.url}/v3/chat/completions", json=body, timeout=60) as stream:
        next(stream.iter_bytes())
    assert wait_for(lambda: metric("llm_requests_aborted_total") == before + 1)
    assert wait_for(lambda: metric("ovms_current_graphs") == metric("llm_requests_running") == 0)
    generated = metric("llm_generated_tokens_total")
    time.sleep(0.3)
    assert metric("llm_generated_tokens_total") == generated


@pytest.fixture
def stand_in(monkeypatch) -> None:
    """Processes that `serve` starts have no model and are quick."""
    monkeypatch.setattr(server, "MODULE", STAND_IN)


def test_it_ends_with_the_block_and_leaves_nothing(toy, stand_in, capsys):
    with server.serve(toy) as one:
        folder = one.log.parent
        assert http.get(f"{one.url}/v3/models").json()["data"][0]["id"] == "toy"
    assert gone(one.pid) and not folder.exists()
    with pytest.raises(httpx.ConnectError):
        http.get(one.url)
    assert f"toy is served at {one.url} after" in capsys.readouterr().out


def test_it_ends_with_an_exception(toy, stand_in):
    with pytest.raises(ZeroDivisionError), server.serve(toy, quiet=True) as one:
        raise ZeroDivisionError
    assert gone(one.pid) and not one.log.parent.exists()


def test_a_killed_parent_takes_its_server_along(toy):
    code = (
        "import sys, time, pathlib\n"
        "from notebooks.deepseek_serving.server import process as server\n"
        f"server.MODULE = {STAND_IN!r}\n"
        "with server.serve(pathlib.Path(sys.argv[1]), kind='local', quiet=True) as one:\n"
        "    print(one.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, toy], stdout=subprocess.PIPE, cwd=ROOT)
    pid = int(parent.stdout.readline())
    assert not gone(pid)
    parent.kill()  # as a notebook's kernel is
    parent.wait()
    parent.stdout.close()
    assert wait_for(lambda: gone(pid), 15)


@contextlib.contextmanager
def started(folder: Path | None, module: str):
    """The command that readers type, and the address that it prints."""
    folders = [] if folder is None else [str(folder)]
    command = [sys.executable, "-m", module, *folders, "--port", "0", "--kind", "local"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        yield process, process.stdout.readline().decode().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send.")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_in_the_middle_of_an_answer(toy, tmp_path, number):
    repository.write(toy, "toy", tmp_path / "ir", max_tokens_limit=900)
    with started(toy, STAND_IN) as (process, url):
        assert wait_for(lambda: http.get(f"{url}/v2/health/ready").status_code == 200, 60)
        body = {"model": "toy", "prompt": "abcdefghi", "max_tokens": 900, "stream": True}  # it takes 4.5 seconds
        with http.stream("POST", f"{url}/v3/completions", json=body) as stream:
            next(pieces := stream.iter_bytes())
            process.send_signal(number)
            rest = b"".join(pieces)
        assert rest.endswith(b'data: {"error": "The server is stopping."}\n\n')
        assert process.wait(20) == 0


def test_health_is_red_while_it_loads_and_live_at_once(tiny):
    with started(tiny, MODULE) as (_, url):
        assert http.get(f"{url}/v2/health/live").status_code == 200
        states = set()
        assert wait_for(lambda: states.add(http.get(f"{url}/v2/health/ready").status_code) or 200 in states, 60)
        assert states == {503, 200}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send.")
def test_without_a_folder_it_serves_the_tiny_model(tiny):
    with started(None, MODULE) as (process, url):
        assert wait_for(lambda: http.get(f"{url}/v2/health/ready").status_code == 200, 60)
        assert [model["id"] for model in http.get(f"{url}/v3/models").json()["data"]] == ["tiny"]
        (folder,) = {
            Path(file.path).parents[2] for file in psutil.Process(process.pid).memory_maps() if ".bin" in file.path
        }
        process.terminate()
        assert process.wait(20) == 0
    assert not folder.exists()


def test_a_port_that_is_taken_is_reported(toy, stand_in, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = f"127.0.0.1:{port} cannot be had"
        with pytest.raises(server.ServerFailed, match=message), server.serve(toy, port, quiet=True):
            pass
        assert server.main([str(toy), "--port", str(port)]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_port_that_is_none_is_reported(port, toy):
    with pytest.raises(ValueError, match=f"There is no port {port}"), server.serve(toy, port):
        pass


def test_a_repository_half_written_is_refused_before_anything_starts(toy, monkeypatch, capsys):
    (toy / "toy/openvino_tokenizer.bin").unlink()
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("A server was started."))
    with pytest.raises(ValueError, match="openvino_tokenizer.bin is missing"), server.serve(toy):
        pass
    assert server.main([str(toy)]) == 1 and "openvino_tokenizer.bin is missing" in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_is_reported_with_the_log(toy):
    with pytest.raises(server.ServerFailed, match="ended while it started") as caught:
        with server.serve(toy, quiet=True, timeout=60):
            pass
    assert "Its log ends:" in str(caught.value) and "The engine has failed" in str(caught.value)


def test_a_server_that_is_not_ready_in_time_is_ended(toy, stand_in, monkeypatch):
    begun = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            begun.append(self)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(server.ServerFailed, match="not ready after 0 s"):
        with server.serve(toy, quiet=True, timeout=0.01):
            pass
    assert [process.poll() is not None for process in begun] == [True]


def test_the_key_is_not_on_the_command_line(toy, stand_in):
    key = "a-key-of-more-than-sixteen-characters"
    with server.serve(toy, api_key=key, quiet=True) as one:
        assert key not in " ".join(psutil.Process(one.pid).cmdline())
        assert http.get(f"{one.url}/v3/models").status_code == 401
        reply = http.get(f"{one.url}/v3/models", headers={"Authorization": f"Bearer {key}"})
        assert reply.json()["data"][0]["id"] == "toy"
