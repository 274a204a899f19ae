"""The container's files do what they say: their commands run in a clean folder, as far as that needs no Docker."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.utils.setup import small
from utils import links
from utils.paths import ROOT
from utils.setup import env, offline

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
LAB_TIMEOUT_S = 60
RECORDER = """#!/bin/sh
echo "$@" >> calls
mkdir -p .venv/bin
[ -e .venv/bin/python ] || cp "$0" .venv/bin/python
"""
STUBS = {  # what the notebook for Colab calls, of which the toy has nothing
    "utils/run.py": "import sys, pathlib\npathlib.Path(sys.argv[3]).write_text('a notebook', encoding='utf-8')\n",
    "jupyter.py": "import sys, pathlib\nassert sys.argv[1:3] == ['nbconvert', '--to=html']\n"
    "page = pathlib.Path(sys.argv[3])\nassert page.read_text(encoding='utf-8') == 'a notebook'\n"
    "page.with_suffix('.html').write_text('a page', encoding='utf-8')\n",
    "utils/setup/env.py": "import os, sys\nos.makedirs('.venv/bin')\nos.symlink(sys.executable, '.venv/bin/python')\n",
}
posix = pytest.mark.skipif(os.name != "posix", reason="the commands are for the shell of Linux")


def instructions(text: str) -> list[tuple[str, str]]:
    """Name and text of each instruction of a Dockerfile, in order."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines()]


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Path:
    """A toy of this repository in a clean folder, and an index of its packages that pip asks alone."""
    root = small.repository(tmp_path / "toy")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", small.wheels(tmp_path / "index").as_uri())
    monkeypatch.setenv("CHROMIUM", sys.executable)  # no browser is fetched
    monkeypatch.setenv("HOME", str(tmp_path))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return root


def test_the_image_is_pinned_and_runs_as_a_user():
    steps = instructions(DOCKERFILE)
    names = [name for name, _ in steps]
    assert re.fullmatch(r"python:3\.1[123]-slim-[a-z]+", dict(steps)["FROM"])
    users = [text for name, text in steps if name == "USER"]
    assert users and not {"root", "0"} & set(users) and names.index("USER") < names.index("COPY") < names.index("CMD")
    assert "ADD" not in names and all(text.startswith("--chown=") for name, text in steps if name == "COPY")
    assert not re.search(r"token|password", DOCKERFILE, re.IGNORECASE)  # JupyterLab makes its own at each start


def test_only_the_host_itself_reaches_jupyterlab():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    ports = [port for service in services.values() for port in service["ports"]]
    exposed = [text for name, text in instructions(DOCKERFILE) if name == "EXPOSE"]
    assert ports == [f"127.0.0.1:{port}:{port}" for port in exposed] and ports
    assert all(service["cap_drop"] == ["ALL"] for service in services.values())


def test_the_image_gets_no_environment_history_or_models():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv*", "models", "dist", "bundle", "**/__pycache__"} <= set(ignored)
    needed = {"utils", "notebooks", "README.md", "requirements.txt", "requirements.lock", "pyproject.toml", "results"}
    assert not needed & set(ignored)


@posix
def test_the_commands_that_build_the_image_run_in_a_clean_folder(toy):
    steps = instructions(DOCKERFILE)
    after = steps[[name for name, _ in steps].index("COPY") + 1 :]
    commands = [text for name, text in after if name == "RUN"]
    settings = dict(text.split("=") for name, text in after if name == "ENV")
    assert commands
    for command in commands:
        done = subprocess.run(["sh", "-ec", command], cwd=toy, env=os.environ | settings, capture_output=True)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    python = env.VENV_PYTHON.relative_to(ROOT).as_posix()
    started = json.loads(dict(steps)["CMD"])
    assert started[0] == python and (toy / python).exists()


def test_jupyterlab_starts_without_a_network_and_asks_for_its_token(tmp_path):
    command = json.loads(dict(instructions(DOCKERFILE))["CMD"])[1:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for given, here in (("--ServerApp.ip=0.0.0.0", "127.0.0.1"), ("--ServerApp.port=8888", port)):
        assert given in command
        command[command.index(given)] = f"{given.partition('=')[0]}={here}"
    settings = offline.guarded(os.environ) | {"JUPYTER_CONFIG_DIR": str(tmp_path), "JUPYTER_DATA_DIR": str(tmp_path)}
    with open(tmp_path / "log", "wb") as log:
        root = ["--allow-root"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        lab = subprocess.Popen([sys.executable, *command, *root], cwd=ROOT, env=settings, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        assert json.load(answer(lab, f"{address}/api", tmp_path / "log"))["version"]
        page = answer(lab, f"{address}/lab/tree/README.md", tmp_path / "log")
        assert "/login" in page.geturl()
        assert f"{address}/lab/tree/README.md?token=" in (tmp_path / "log").read_text(encoding="utf-8")
    finally:
        lab.terminate()
        lab.wait(20)


def answer(process: subprocess.Popen, address: str, log: Path):
    """The reply of a server that may still be starting."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + LAB_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            return opener.open(address, timeout=10)
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text(encoding="utf-8"))


@posix
def test_binder_prepares_the_environment_and_takes_its_kernel(tmp_path):
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(RECORDER, encoding="utf-8")
    python.chmod(0o755)
    settings = {"PATH": f"{python.parent}:{os.environ['PATH']}", "NB_PYTHON_PREFIX": "/prefix", "HOME": str(tmp_path)}
    subprocess.run([ROOT / "binder/postBuild"], cwd=tmp_path, env=settings, check=True)
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert calls == ["-m utils.setup.env", "-m ipykernel install --prefix /prefix --name python3"]


@posix
def test_the_notebook_for_colab_clones_prepares_runs_and_shows(tmp_path, monkeypatch):
    toy, shown = small.repository(tmp_path / "toy"), []
    for name, text in STUBS.items():
        (toy / name).write_text(text, encoding="utf-8")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run([*git, "add", "."], cwd=toy, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "toy"], cwd=toy, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("IPython.display.display", lambda page: shown.append(page.data))
    scope = {}
    for cell in json.loads(links.colab(str(toy)))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), scope)
    assert shown == ["a page"]
