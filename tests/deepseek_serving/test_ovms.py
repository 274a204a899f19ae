"""A Model Server on this machine is found and started with the right arguments; here it is a stand-in."""

import json
import os
import sys
import textwrap

import psutil
import pytest

from notebooks.deepseek_serving.server import ovms, process
from tests.deepseek_serving.fakes import http, wait_for

STAND_IN = """
import http.server, json, os, pathlib, sys

arguments = sys.argv[1:]
pathlib.Path(os.environ["STAND_IN"]).write_text(json.dumps({"arguments": arguments, "pid": os.getpid()}))
if os.environ.get("STAND_IN_FAILS"):
    sys.exit("Cannot load library libtbb.so")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v2/health/ready" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()


port = int(arguments[arguments.index("--rest_port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def program(folder, name: str) -> str:
    """Put the stand-in into `folder` under a name that this system can run."""
    script = folder / f"{name}.py"
    script.write_text(textwrap.dedent(STAND_IN), encoding="utf-8")
    if os.name == "nt":
        file = folder / f"{name}.cmd"
        file.write_text(f'@"{sys.executable}" "{script}" %*\n', encoding="utf-8")
    else:
        file = folder / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n', encoding="utf-8")
        file.chmod(0o755)
    return str(file)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without any Model Server, where the stand-in reports to a file."""
    monkeypatch.delenv("OVMS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("STAND_IN", str(tmp_path / "report.json"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def test_nothing_is_found_where_there_is_nothing(bare):
    assert ovms.find() is None


def test_the_environment_names_it_first(bare, monkeypatch):
    on_path = program(bare / "bin", "ovms")
    (bare / "other").mkdir()
    named = program(bare / "other", "my-ovms")
    assert ovms.find() == [on_path]
    monkeypatch.setenv("OVMS", named)
    assert ovms.find() == [named]
    monkeypatch.setenv("OVMS", str(bare / "nowhere"))
    with pytest.raises(ValueError, match="OVMS=.*nowhere is no program"):
        ovms.find()


@pytest.mark.parametrize("status", [0, 1])
def test_docker_counts_where_it_has_the_image(bare, monkeypatch, status):
    docker = program(bare / "bin", "docker")
    commands = []
    monkeypatch.setattr(ovms, "_succeeds", lambda arguments: commands.append(arguments) or status == 0)
    assert ovms.find() == ([docker] if status == 0 else None)
    assert commands == [[docker, "image", "inspect", "openvino/model_server:latest"]]


def test_commands(tmp_path):
    config = str((tmp_path / "config.json").resolve())
    loopback = ["--rest_port", "81", "--rest_bind_address", "127.0.0.1"]
    assert ovms.command(["/opt/ovms"], tmp_path, 81) == ["/opt/ovms", "--config_path", config, *loopback]
    assert ovms.command(["/usr/bin/docker"], tmp_path, 81, "name") == [
        *["/usr/bin/docker", "run", "--rm", "--name", "name", "--publish", "127.0.0.1:81:81"],
        *["--volume", f"{tmp_path.resolve()}:/models:ro", "openvino/model_server:latest"],
        *["--config_path", "/models/config.json", "--rest_port", "81"],
    ]


def test_the_lines_for_readers_name_folder_port_and_loopback():
    lines = ovms.command_lines("models/mine", 1234)
    assert list(lines) == ["Linux", "Windows", "Docker"]
    assert "--config_path models/mine/config.json --rest_port 1234 --rest_bind_address 127.0.0.1" in lines["Linux"]
    assert r"--config_path models\mine\config.json --rest_port 1234" in lines["Windows"]
    assert '"$PWD/models/mine:/models:ro"' in lines["Docker"] and "127.0.0.1:1234:1234" in lines["Docker"]


def test_it_is_started_on_the_repository_and_ended_with_the_block(bare, toy, monkeypatch):
    monkeypatch.setenv("OVMS", program(bare, "stand-in"))
    with process.serve(toy, quiet=True) as running:
        assert running.kind == "ovms" and running.title == "OpenVINO Model Server" and running.model == "toy"
        report = json.loads((bare / "report.json").read_text(encoding="utf-8"))
        port = running.url.rsplit(":", 1)[1]
        assert report["arguments"] == [
            *["--config_path", str(toy.resolve() / "config.json")],
            *["--rest_port", port, "--rest_bind_address", "127.0.0.1"],
        ]
        assert http.get(f"{running.url}/v2/health/ready").status_code == 200
    assert wait_for(lambda: not psutil.pid_exists(report["pid"]))


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux tells a child that its parent was killed.")
def test_it_ends_though_its_supervisor_is_killed(bare, toy, monkeypatch):
    monkeypatch.setenv("OVMS", program(bare, "stand-in"))
    with process.serve(toy, quiet=True) as running:
        pid = json.loads((bare / "report.json").read_text(encoding="utf-8"))["pid"]
        psutil.Process(running.pid).kill()
        assert wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_start_that_fails_is_reported_with_its_message(bare, toy, monkeypatch):
    monkeypatch.setenv("OVMS", program(bare, "stand-in"))
    monkeypatch.setenv("STAND_IN_FAILS", "1")
    with pytest.raises(process.ServerFailed, match="Cannot load library libtbb.so"):
        with process.serve(toy, quiet=True):
            pass


def test_with_a_key_the_local_server_answers(bare, monkeypatch):
    monkeypatch.setenv("OVMS", program(bare, "stand-in"))
    key = "sixteen characters or more"
    assert process.choose("127.0.0.1", 0, None, "auto")[0] == "ovms"
    assert process.choose("127.0.0.1", 0, key, "auto") == ("local", None)
    assert process.choose("127.0.0.1", 0, None, "local") == ("local", None)
    with pytest.raises(ValueError, match="started here on 127.0.0.1 only"):
        process.choose("0.0.0.0", 0, key, "ovms")


def test_what_is_not_there_cannot_be_asked_for(bare):
    with pytest.raises(ValueError, match="There is no ovms"):
        process.choose("127.0.0.1", 0, None, "ovms")
    with pytest.raises(ValueError, match="kind is 'remote'"):
        process.choose("127.0.0.1", 0, None, "remote")
