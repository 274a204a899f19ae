"""The order of all tests, and what `--seconds` leaves out."""

import subprocess
import sys

from utils.paths import ROOT


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_tests_that_would_begin_too_late_are_skipped_by_name() -> None:
    printed = run("--seconds=0", "tests/utils/test_files.py")
    assert "not run, for 0 s were over" in printed and " passed" not in printed


def test_notebooks_come_first_and_the_tests_of_each_notebook_last() -> None:
    files = ["tests/dien/test_data.py", "tests/utils/test_files.py", "tests/test_words.py", "notebooks/dien/dien.ipynb"]
    listed = [line.partition("::")[0] for line in run("--collect-only", *files).splitlines() if "::" in line]
    order = list(dict.fromkeys(listed))
    assert order[0] == files[-1] and order[-1] == files[0] and len(order) == 4
