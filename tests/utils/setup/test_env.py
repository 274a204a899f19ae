"""Set-up: what it decides from, what it says when it cannot go on, and that the environment stays quiet."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.utils.setup import small
from utils.setup import browser, env, offline, packages, quiet


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A folder with a requirement and a checkpoint, which `utils.setup.env` takes for the repository."""
    for name in (
        "requirements.txt",
        "requirements.lock",
        "pyproject.toml",
        "notebooks/case/checkpoints.toml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("torch==1.2.3  # a reason\ntorch-other==4\n", encoding="utf-8")
    python = tmp_path / env.VENV_PYTHON.relative_to(env.ROOT)
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / ".venv/pyvenv.cfg").write_text("version = {}.{}.0\n".format(*sys.version_info), encoding="utf-8")
    for name, value in {
        "ROOT": tmp_path,
        "VENV": tmp_path / ".venv",
        "VENV_PYTHON": python,
        "STAMP": tmp_path / ".venv/.ready",
        "BUNDLE": tmp_path / "bundle",
    }.items():
        monkeypatch.setattr(env, name, value)
    return tmp_path


def test_pin_is_the_exact_requirement(root) -> None:
    assert packages.pin("torch", root / "requirements.txt") == "torch==1.2.3"
    assert packages.pin("other", root / "requirements.txt") is None


@pytest.mark.parametrize(
    "changed",
    [
        "requirements.txt",
        "requirements.lock",
        "pyproject.toml",
        "notebooks/case/checkpoints.toml",
        "notebooks/new/checkpoints.toml",
        "utils/new/checkpoints.toml",
    ],
)
def test_ready_until_a_file_changes(root, changed) -> None:
    assert not env.is_ready()
    env.STAMP.write_text(f"{env.digest()} {root}", encoding="utf-8")
    assert env.is_ready()
    assert not env.is_ready(latest=True)
    (root / changed).parent.mkdir(parents=True, exist_ok=True)
    (root / changed).write_text("torch==1.2.4\n", encoding="utf-8")
    assert not env.is_ready()
    assert not env.must_start_over()


def test_environments_that_cannot_be_updated(root) -> None:
    assert not env.must_start_over()  # one that the reader made
    env.STAMP.write_text("unfinished", encoding="utf-8")
    assert env.must_start_over()
    env.STAMP.write_text(f"{env.digest()} /moved/from/here", encoding="utf-8")
    assert env.must_start_over()
    env.STAMP.unlink()
    (root / ".venv/pyvenv.cfg").write_text("version = 3.2.1\n", encoding="utf-8")
    assert env.must_start_over()
    env.VENV_PYTHON.unlink()
    assert env.must_start_over()


def test_python_too_old(root, monkeypatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(env.SetupError, match=r"too old: install 3\.11 or newer.*PYTHON=python3\.12"):
        env.check_system()


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_venv_module_missing(root, monkeypatch, module) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(env.SetupError, match=f"lacks its {module} module.*python3-venv"):
        env.check_system()


def test_disk_too_small(root, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**10, 0, 5 * 10**9))
    env.check_system()  # an update needs less
    env.VENV_PYTHON.unlink()
    with pytest.raises(env.SetupError, match=r"5\.0 GB are free .* needs 6 GB"):
        env.check_system()


@pytest.mark.parametrize(
    "output, expected",
    [
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("NewConnectionError('...'): Failed to establish a new connection", "No package index answered"),
        ("ERROR: ResolutionImpossible", "Its last lines"),
    ],
)
def test_explanations(output, expected) -> None:
    assert expected in env.explain("pip install", output)
    assert output in env.explain("pip install", output)


def test_without_an_index_it_says_so_and_stays_unfinished(tmp_path) -> None:
    root = small.repository(tmp_path / "repository")
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "1"}
    kept = {x: y for x, y in os.environ.items() if not x.startswith("PIP_")}
    (root / "requirements.txt").write_text("toy==1.0\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "utils.setup.env"],
        cwd=root,
        env={**kept, **nowhere},
        capture_output=True,
        text=True,
        timeout=120,
        encoding="utf-8",
    )
    assert done.returncode == 1
    assert "No package index answered" in done.stderr
    assert "Traceback" not in done.stderr
    assert (root / ".venv/.ready").read_text(encoding="utf-8") == "unfinished"


def test_torch_comes_from_its_cpu_index_only_where_that_answers(root, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(env, "pip", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(env, "pin", lambda name: f"{name}==1.2.3")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(env, "cpu_index_answers", lambda: False)
    assert env.install_torch(latest=False) == "the plain pin"
    assert asked == [("install", "torch==1.2.3", "-c", "requirements.lock")]
    monkeypatch.setattr(env, "cpu_index_answers", lambda: True)
    assert env.install_torch(latest=False) == "the CPU build"
    assert asked[1:] == [("install", "--no-deps", "--index-url", packages.TORCH_CPU, "torch==1.2.3")]


def test_torch_falls_back_when_the_cpu_index_breaks_off(root, monkeypatch) -> None:
    def pip(*arguments: str) -> None:
        if "--index-url" in arguments:
            raise env.SetupError("broken off")

    monkeypatch.setattr(env, "pip", pip)
    monkeypatch.setattr(env, "pin", lambda name: f"{name}==1.2.3")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(env, "cpu_index_answers", lambda: True)
    assert env.install_torch(latest=False) == "the plain pin"


@pytest.mark.parametrize("answers", [False, True], ids=["no answer", "broken off"])
def test_the_cuda_build_of_torch_is_not_installed_on_arm(root, monkeypatch, answers) -> None:
    asked = []

    def pip(*arguments: str) -> None:
        asked.append(arguments)
        if "--index-url" in arguments:
            raise env.SetupError("broken off")

    monkeypatch.setattr(env, "pip", pip)
    monkeypatch.setattr(env, "pin", lambda name: f"{name}==1.2.3")
    monkeypatch.setattr(env, "cpu_index_answers", lambda: answers)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(env.SetupError, match=r"torch==1\.2\.3 cannot be installed: for ARM .* only a CUDA build"):
        env.install_torch(latest=False)
    assert ("install", "torch==1.2.3", "-c", "requirements.lock") not in asked
    env.BUNDLE.mkdir()  # which has the build of the machine that it was made on
    assert env.install_torch(latest=False) == "the plain pin"


def test_macos_on_arm_takes_the_plain_pin(root, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(env, "pip", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(env, "pin", lambda name: f"{name}==1.2.3")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert env.install_torch(latest=False) == "the plain pin"
    assert asked == [("install", "torch==1.2.3", "-c", "requirements.lock")]


def test_latest_drops_pins_but_those_held(root, monkeypatch) -> None:
    (root / "requirements.txt").write_text(
        "one==1.0  # a reason\ntwo==2.0  # held: a reason\n# three==3\n", encoding="utf-8"
    )
    seen = []
    monkeypatch.setattr(env, "pip", lambda *arguments: seen.append(Path(arguments[-1]).read_text(encoding="utf-8")))
    env.install_packages(latest=True)
    assert seen == ["one  # a reason\ntwo==2.0  # held: a reason\n# three"]


def test_on_windows_the_lock_is_asked_for_until_it_is_free(monkeypatch) -> None:
    asked = []

    def locking(number: int, mode: int, count: int) -> None:
        asked.append((mode, count))
        if len(asked) < 3:
            raise OSError(36, "Resource deadlock avoided")

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_LOCK=1, locking=locking))
    monkeypatch.setattr(env, "os", SimpleNamespace(name="nt"))
    with env.one_at_a_time():
        assert asked == [(1, 1)] * 3


def test_from_a_bundle_pip_sees_nothing_else(root, monkeypatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://elsewhere.invalid")
    assert env.pip_environment()["PIP_EXTRA_INDEX_URL"] == "http://elsewhere.invalid"
    env.BUNDLE.mkdir()
    made = env.pip_environment()
    assert "PIP_EXTRA_INDEX_URL" not in made
    assert made["PIP_NO_INDEX"] == "1"
    assert made["PIP_FIND_LINKS"] == (env.BUNDLE / "wheels").as_uri()


def test_browser_is_found_where_it_is(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    for name in ("CHROMIUM", "LOCALAPPDATA", "PROGRAMFILES", "PROGRAMFILES(X86)"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(browser, "MACOS", ())
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    assert browser.find() is None
    assert "playwright install chromium" in browser.command()
    program = tmp_path / "chromium-1200/chrome-linux64/chrome"
    program.parent.mkdir(parents=True)
    program.touch()
    assert browser.find() == str(program)
    monkeypatch.setenv("CHROMIUM", "/my/own")
    assert browser.find() == "/my/own"


def test_only_a_missing_browser_is_fetched(root, monkeypatch) -> None:
    ran = []
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(env, "execute", lambda *command, **_: ran.append(command[1:]))
    monkeypatch.setattr(browser, "find", lambda: "/usr/bin/chromium")
    assert (env.get_browser(), ran) == ("/usr/bin/chromium", [])
    found = iter([None, "/fetched/chrome"])
    monkeypatch.setattr(browser, "find", lambda: next(found))
    assert env.get_browser() == "/fetched/chrome"
    assert ran == [("-m", "playwright", "install", "chromium")]


def test_no_browser_is_no_failure_and_names_the_command(root, monkeypatch) -> None:
    def execute(*command: str, **_) -> None:
        raise env.SetupError("no network")

    monkeypatch.setattr(env, "execute", execute)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(browser, "find", lambda: None)
    assert "browser tests will be skipped until `" in env.get_browser()
    assert "playwright install chromium" in env.get_browser()


CALLS = """
import gradio, nncf, openvino, optimum.intel, openvino_genai, torch, transformers
model = openvino.convert_model(torch.nn.Linear(64, 64), example_input=torch.zeros(1, 64))
nncf.compress_weights(model)
with gradio.Blocks() as demo:
    gradio.Markdown("hello")
demo.launch(prevent_thread_lock=True, quiet=True)
demo.close()
print("ran")
"""
LOUD = """
import sys
del sys.modules["openvino_telemetry"]
import openvino, openvino_telemetry
openvino_telemetry.Telemetry().sender.executor.shutdown()  # since 3.12 a Python that ends starts no process
print("ran")
"""


def calls(code: str, folder: Path) -> list[str]:
    """The outside addresses that `code` tried to reach, run without CI=true and with an empty home."""
    log = folder / "refused"
    variables = {x: y for x, y in os.environ.items() if x not in ("CI", "TF_BUILD", "JENKINS_URL", *QUIET)}
    variables |= {"HOME": str(folder), "LOCALAPPDATA": str(folder), "OFFLINE_LOG": str(log)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=offline.guarded(variables),
        capture_output=True,
        text=True,
        timeout=300,
        encoding="utf-8",
    )
    assert done.stdout.endswith("ran\n"), done.stderr
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


QUIET = ("DO_NOT_TRACK", "GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY")


def test_nothing_calls_home(tmp_path) -> None:
    assert calls(CALLS, tmp_path) == []
    assert not (tmp_path / "intel").exists()


def test_openvino_would_call_home_otherwise(tmp_path) -> None:
    assert "socket.getaddrinfo www.google-analytics.com" in calls(LOUD, tmp_path)


def test_quiet_is_written_into_this_environment(tmp_path) -> None:
    assert (quiet.packages(Path(sys.prefix)) / "_quiet.py").read_text(encoding="utf-8") == quiet.START
    quiet.packages(tmp_path).mkdir(parents=True)
    quiet.write(tmp_path)
    assert (quiet.packages(tmp_path) / "quiet.pth").read_text(encoding="utf-8") == "import _quiet\n"
    assert '"fetchNews": "false"' in (tmp_path / "share/jupyter/lab/settings/overrides.json").read_text(
        encoding="utf-8"
    )
