"""The code of the reports to OpenVINO runs, and prints what the reports say."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from utils import paths
from utils.setup import emulator

REPORTS = sorted((paths.ROOT / "notebooks/arm/upstream").glob("*.md"))
HERE = [sys.executable, "-P"]
EMULATED = emulator.found(paths.models_dir() / "arm")
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
RUNS = [(HERE, ["Expected"] if IS_X86 else ["Expected", "Got"])]  # nobody has run the code on a real ARM processor yet
RUNS += [(EMULATED, ["Got"])] if EMULATED else []  # without the emulator, only the expected output can be seen
every_run = pytest.mark.parametrize(("program", "headings"), RUNS, ids=["here", "emulated"][: len(RUNS)])
every_report = pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)


def block(report: Path, heading: str) -> str:
    """The first block of code below a heading of a report."""
    text = report.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.search(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]


def printed(program: list[str], code: str, folder: Path) -> str:
    (folder / "report.py").write_text(code, encoding="utf-8")
    command = [*program, str(folder / "report.py")]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_three_reports():
    assert len(REPORTS) == 3


@every_run
@every_report
def test_the_code_prints_what_the_report_says(report, program, headings, tmp_path):
    output = printed(program, block(report, "Code"), tmp_path)
    assert output in [block(report, heading) for heading in headings]


@every_run
@every_report
def test_the_workaround_is_right_on_every_processor(report, program, headings, tmp_path):
    code = block(report, "Code") + "\n" + block(report, "Workaround")
    assert printed(program, code, tmp_path).splitlines()[-1] == "with the workaround: 0.0000"


@every_report
def test_expected_and_got_differ_and_the_versions_are_named(report):
    assert block(report, "Expected") != block(report, "Got")
    text = report.read_text(encoding="utf-8")
    assert "OpenVINO 2026.4.1" in text and "emulated" in text
