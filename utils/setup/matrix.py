"""`python -m utils.setup.matrix [PYTHON ...]` runs the fast tests and one notebook with each Python, 3.11 to 3.13.

Each works in a fresh clone of what is committed, with an environment of its own, and with this folder's models. The
interpreters are those that are installed: on the PATH, by pyenv or uv, or on Windows by the launcher. What came of it
goes to results/pythons.json, from which the front page has its table, and the output of each step to dist/matrix.
Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import date as calendar
from pathlib import Path

from utils.files import replaced
from utils.paths import ROOT, models_dir
from utils.setup.systems import PYTHONS, SYSTEMS, here

RESULTS = ROOT / "results" / "pythons.json"
LOGS = ROOT / "dist" / "matrix"

TESTS = ("tests/utils", *(f"tests/test_{name}.py" for name in "architecture platforms requirements workflows".split()))
NOTEBOOK = "dien"
LINES, LONGEST = 15, 200  # of the output of what failed: lines, and characters of each


def candidates(python: str) -> Iterator[Path]:
    """Where the interpreter of a Python such as "3.12" may be."""
    if found := shutil.which(f"python{python}"):
        yield Path(found)
    if launcher := shutil.which("py"):
        asked = [launcher, f"-{python}", "-c", "import sys; print(sys.executable)"]
        done = subprocess.run(asked, capture_output=True, text=True, encoding="utf-8")
        if done.returncode == 0:
            yield Path(done.stdout.strip())
    homes = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")]
    homes += [Path.home() / ".local/share/uv/python"]
    for home, pattern in zip(homes, (f"{python}.*", f"cpython-{python}.*"), strict=True):
        yield from sorted(home.glob(f"{pattern}/bin/python{python}"))


def interpreter(python: str) -> Path | None:
    """The first candidate that runs and has that version, if any."""
    for program in candidates(python):
        asked = [program, "-c", "import sys, venv, ensurepip; print('{}.{}'.format(*sys.version_info))"]
        done = subprocess.run(asked, capture_output=True, text=True, encoding="utf-8")
        if done.stdout.strip() == python:
            return program
    return None


def steps(program: Path) -> dict[str, list[str]]:
    """What is run in the clone, by name."""
    python = ".venv/Scripts/python.exe" if os.name == "nt" else ".venv/bin/python"
    offline = [python, "-m", "utils.setup.offline", python]
    return {
        "set-up": [str(program), "-m", "utils.setup.env"],
        "fast tests": [*offline, "-m", "pytest", "-q", *TESTS],
        f"notebook {NOTEBOOK}": [*offline, "-m", "utils.run", NOTEBOOK],
    }


def examine(program: Path, logs: Path) -> dict[str, dict]:
    """Run the steps in a fresh clone until one fails, printing a line for each. Raises CalledProcessError.

    logs: a folder for the output of each step.

    Returns of each step that ran whether it "passed", its "seconds", and the "last line" that it printed.
    """
    outcomes = {}
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="matrix-") as scratch:
        clone = Path(scratch, "clone")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        outer = ("PYTEST_", "PYTHON", "VIRTUAL_ENV", "RESULTS_DIR")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
        for name, command in steps(program).items():
            begin = time.monotonic()
            environment = {**kept, "MODELS_DIR": str(models_dir())}
            done = subprocess.run(
                command,
                cwd=clone,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
            log = logs / f"{name.replace(' ', '-')}.txt"
            log.write_bytes(done.stdout)
            lines = done.stdout.decode(errors="replace").strip().splitlines() or [""]
            seconds = round(time.monotonic() - begin)
            outcomes[name] = {"passed": done.returncode == 0, "seconds": seconds, "last line": lines[-1][:LONGEST]}
            verdict = f"FAILED with status {done.returncode}" if done.returncode else "passed"
            print(f"  {name}: {verdict}, {seconds} s. {lines[-1][:LONGEST]}", flush=True)
            if done.returncode:
                print("\n".join(f"    {line[:LONGEST]}" for line in lines[-LINES:]), flush=True)
                print(f"  All of its output is in {log}.", flush=True)
                break
    return outcomes


def record(python: str, outcomes: Mapping[str, Mapping], path: Path) -> None:
    """Write what came of the steps on this system with a Python such as "3.12", in place of its earlier outcomes."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    system = SYSTEMS[here()].title if here() in SYSTEMS else here()
    own = stored.get(system, {}) | {python: {"date": calendar.today().isoformat(), "steps": outcomes}}
    stored[system] = dict(sorted(own.items()))
    with replaced(path) as partial:
        partial.write_bytes((json.dumps(stored, indent=1, ensure_ascii=False) + "\n").encode())


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status: 1 when a step fails or an interpreter is not there."""
    parser = argparse.ArgumentParser(prog="python -m utils.setup.matrix", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help=f"of {', '.join(PYTHONS)}; without any, all")
    passed = True
    for python in parser.parse_args(arguments).pythons or PYTHONS:
        program = interpreter(python)
        print(f"matrix: Python {python}: {program or 'not found on this machine'}", flush=True)
        outcomes = examine(program, LOGS / python) if program else {}
        if outcomes:
            record(python, outcomes, RESULTS)
        passed &= bool(outcomes) and all(outcome["passed"] for outcome in outcomes.values())
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
