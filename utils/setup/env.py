"""`python -m utils.setup.env` prepares `.venv`: packages, checkpoints and a browser for the tests.

It runs under the system's Python before anything is installed (so: standard library only), does nothing when
all is up to date, and starts over when an earlier set-up was interrupted. In an unpacked bundle
(`utils.setup.bundle`) it installs from there, offline.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from utils.paths import ROOT, checkpoint_lists
from utils.setup import browser, long_paths, manifest, quiet
from utils.setup.packages import TORCH_CPU, cpu_index_answers, pin

VENV = ROOT / ".venv"
STAMP = VENV / ".ready"
BUNDLE = ROOT / manifest.FOLDER
VENV_PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
OLDEST_PYTHON = (3, 11)
DISK_GB = 6


class SetupError(Exception):
    """The set-up could not finish; the message says why and what to do."""


def digest(latest: bool = False) -> str:
    """A hash of everything that shapes the environment; another one means that set-up has work to do."""
    files = [ROOT / "requirements.txt", ROOT / "requirements.lock", ROOT / "pyproject.toml", Path(__file__)]
    content = hashlib.sha256(f"{sys.version_info[:2]} {sys.platform} {ROOT} {latest}".encode())
    for file in files + checkpoint_lists(ROOT):
        content.update(hashlib.sha256(file.read_bytes()).digest())
    return content.hexdigest()


def is_ready(latest: bool = False) -> bool:
    """Whether the environment is complete and belongs to the files as they are now."""
    return VENV_PYTHON.exists() and STAMP.exists() and STAMP.read_text(encoding="utf-8").split()[:1] == [digest(latest)]


def must_start_over() -> bool:
    """Whether `.venv` cannot be updated: none there, interrupted, moved, or made by another Python."""
    if not VENV_PYTHON.exists():
        return True
    if STAMP.exists() and STAMP.read_text(encoding="utf-8").split(maxsplit=1)[1:] != [str(ROOT)]:
        return True
    version = re.search(r"^version\s*=\s*(\d+)\.(\d+)", (VENV / "pyvenv.cfg").read_text(encoding="utf-8"), re.MULTILINE)
    return version is None or tuple(map(int, version.groups())) != sys.version_info[:2]


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock that keeps a second set-up of this folder (`make lab` in two terminals) waiting."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    name = f"env-{user}-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}.lock"
    with open(Path(tempfile.gettempdir(), name), "a+b") as file:
        if os.name == "nt":
            import msvcrt

            while True:
                with contextlib.suppress(OSError):  # raised after ten seconds of waiting
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def step(what: str, action: Callable[[], str | None]) -> None:
    """Run `action` and print one line: what it was, the note it returned, the seconds it took."""
    print(f"env: {what} ...", end="", flush=True)
    start = time.monotonic()
    try:
        note = action()
    except BaseException:
        print(" stopped", flush=True)
        raise
    print(f" {note + ', ' if note else ''}{time.monotonic() - start:.0f} s", flush=True)


def execute(*command: str | Path, environment: dict[str, str] | None = None, timeout: float | None = None) -> None:
    """Run a command with its output kept for the case of failure; raises SetupError with its last lines."""
    shown = " ".join(map(str, command[1:])).removeprefix("-m ")[:80]
    try:
        done = subprocess.run(
            list(map(str, command)),
            env=environment,
            cwd=ROOT,
            timeout=timeout,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
            encoding="utf-8",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"`{shown}` did not work: {error}") from error
    if done.returncode != 0:
        raise SetupError(explain(shown, done.stdout))


def explain(command: str, output: str) -> str:
    """What to tell the reader about a failed command, from its output."""
    tail = "\n    ".join(output.strip().splitlines()[-12:])
    if re.search(r"No space left|\[WinError 112\]", output):
        hint = f"The disk is full: free {DISK_GB} GB and run this again."
    elif re.search(r"NewConnection|NameResolution|ConnectTimeout|network is (unreachable|cut)", output, re.I):
        hint = (
            "No package index answered. Check the connection and the proxy (HTTPS_PROXY, PIP_INDEX_URL), or "
            "prepare from a bundle, which needs no network (`make bundle` on a connected machine)."
        )
    else:
        hint = "Its last lines, above all the last one, say why; run this again once that is mended."
    return f"`{command}` failed. {hint}\n    {tail}"


def check_system() -> None:
    """Raise SetupError when this Python or this disk cannot carry the environment."""
    if sys.version_info[:2] < OLDEST_PYTHON:  # noqa: UP036 (this file runs before anyone checked)
        raise SetupError(
            f"Python {platform.python_version()} is too old: install 3.11 or newer and name it, as in "
            "`make env PYTHON=python3.12`."
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        raise SetupError(
            f"This Python lacks its {error.name} module: install it (on Debian and Ubuntu the package "
            "python3-venv) or use another Python."
        ) from error
    if reason := long_paths.refusal(ROOT):
        raise SetupError(reason)
    free = shutil.disk_usage(ROOT).free / 1e9
    if must_start_over() and free < DISK_GB:
        raise SetupError(
            f"{free:.1f} GB are free in {ROOT}, and the environment with its checkpoints needs "
            f"{DISK_GB} GB: free some space and run this again."
        )


def create_venv() -> str | None:
    """Make `.venv`, or keep the one there for an update. Unfinished until the stamp is renewed."""
    import venv

    fresh = must_start_over()
    if fresh:
        if Path(sys.prefix).resolve() == VENV.resolve():
            raise SetupError(
                "The environment must be created again, which it cannot do itself: run this with the "
                "system's Python (`deactivate` first)."
            )
        shutil.rmtree(VENV, ignore_errors=not VENV.exists())
        VENV.mkdir()
    STAMP.write_text("unfinished", encoding="utf-8")
    if fresh:
        venv.create(VENV, symlinks=os.name != "nt", with_pip=True)
    return None if fresh else "kept"


def pip_environment() -> dict[str, str]:
    """The variables for pip: the reader's own, or from a bundle none that could name another source."""
    if not BUNDLE.is_dir():
        return {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {
        **kept,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": (BUNDLE / "wheels").as_uri(),
        "WHEELS": str(BUNDLE / "wheels"),
    }


def pip(*arguments: str | Path) -> None:
    """Run the environment's own pip."""
    execute(VENV_PYTHON, "-m", "pip", "--no-input", *arguments, environment=pip_environment())


def install_torch(latest: bool) -> str:
    """On Linux take the CPU build from PyTorch's index: the general index has a CUDA build, GBs larger.

    Raises SetupError on ARM, where the lock lacks the packages of the CUDA build, unless the CPU build can be had.
    """
    torch = "torch" if latest else pin("torch")
    if sys.platform == "linux" and not BUNDLE.is_dir() and cpu_index_answers():
        with contextlib.suppress(SetupError):
            pip("install", "--no-deps", "--index-url", TORCH_CPU, torch)
            return "the CPU build"
    if sys.platform == "linux" and platform.machine() == "aarch64" and not BUNDLE.is_dir():
        raise SetupError(
            f"{torch} cannot be installed: for ARM the general index has only a CUDA build, which is GBs larger, and "
            f"the CPU build could not be had from {TORCH_CPU}. Check the connection and the proxy (HTTPS_PROXY) and "
            "run this again, or prepare from a bundle made on an ARM machine (`make bundle`)."
        )
    pip("install", torch, *([] if latest else ["-c", "requirements.lock"]))
    return "the plain pin"


def install_packages(latest: bool) -> None:
    """Install the pins under the lock; `latest`: the newest of all but those marked as held."""
    if not latest:
        return pip("install", "-r", "requirements.txt", "-c", "requirements.lock")
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "latest.txt")
        file.write_text("\n".join(x if "held" in x else re.sub(r"==[^\s;#]+", "", x) for x in lines), encoding="utf-8")
        pip("install", "--upgrade", "-r", file)


def get_browser() -> str:
    """Find a browser, else try to get one: Debian's package as root, then playwright's own download."""
    attempts: list[list[tuple[str | Path, ...]]] = []
    if not BUNDLE.is_dir():
        if shutil.which("apt-get") and getattr(os, "geteuid", lambda: 1)() == 0:
            install = ("apt-get", "install", "-y", "--no-install-recommends", "chromium")
            attempts.append([("apt-get", "update"), install])
        attempts.append([(VENV_PYTHON, "-m", "playwright", "install", "chromium")])
    for commands in attempts:
        if browser.find():
            break
        with contextlib.suppress(SetupError):
            for command in commands:
                execute(*command, environment={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, timeout=600)
    return browser.find() or f"none to be had: the browser tests will be skipped until `{browser.command()}`"


def prepare(latest: bool = False) -> None:
    """Make or update the environment. Raises SetupError; an unfinished environment is created again next time."""
    check_system()
    if BUNDLE.is_dir():
        step("checking the bundle", lambda: manifest.check(ROOT))
    step("making .venv", create_venv)
    if own := pin("pip"):
        step(f"installing {own}", lambda: pip("install", "--upgrade", own))
    if pin("torch"):
        step(f"installing {pin('torch')}", lambda: install_torch(latest))
    step("installing the packages", lambda: install_packages(latest))
    step(
        "installing utils and notebooks",
        lambda: pip("install", "--no-deps", "--no-build-isolation", "-e", "."),
    )
    step("switching telemetry off", lambda: quiet.write(VENV))
    step(
        "fetching the checkpoints",
        lambda: execute(VENV_PYTHON, "-m", "utils.weights", "--setup", environment=pip_environment()),
    )
    step("looking for a browser", get_browser)
    STAMP.write_text(f"{digest(latest)} {ROOT}", encoding="utf-8")


def main() -> int:
    """The command line; returns the exit status: 1 after an error, whose message is printed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m utils.setup.env", description=__doc__.splitlines()[0])
    parser.add_argument("--latest", action="store_true", help="newest releases instead of the pins (the weekly run)")
    options = parser.parse_args()
    try:
        if is_ready(options.latest):
            print("env: ready")
        else:
            with one_at_a_time():
                if not is_ready(options.latest):
                    prepare(options.latest)
                    print("env: ready")
    except (SetupError, ValueError, OSError) as error:
        print(f"env: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nenv: interrupted; run it again to start over.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
