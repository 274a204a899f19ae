"""Each mutation of the toml files turns the test that it names red, by a wrong value and not by an exception.

[[mutation]]
name = "what is wrong now"
file = "notebooks/<case>/<module>.py"
old = "source text, occurring once"
new = "what stands there instead"
test = "tests/<case>/test_<module>.py::test_<name>"
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations.plugin import mutations

ROOT = Path(__file__).parents[2]
MUTATIONS = mutations()


def run(tests: list[str], report: Path, mutation: str = "") -> tuple[dict, str]:
    """How `tests` end under a mutation, from a pytest of their own without plugins that they do not need."""
    options = ["-p", "tests.mutations.plugin", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    settings = {"MUTATION": mutation, "MUTATION_REPORT": str(report), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    command = [sys.executable, "-m", "pytest", "-q", *options, *tests]
    done = subprocess.run(command, cwd=ROOT, env=inherited | settings, capture_output=True, text=True, encoding="utf-8")
    return (json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}), done.stdout + done.stderr


@pytest.fixture(scope="module")
def unmutated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, str]:
    tests = sorted({one["test"] for one in MUTATIONS.values()})
    return run(tests, tmp_path_factory.mktemp("unmutated") / "report.json")


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_source_to_mutate_occurs_once(name):
    one = MUTATIONS[name]
    source = (ROOT / one["file"]).read_text(encoding="utf-8")
    assert source.count(one["old"]) == 1 and one["new"] != one["old"]


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_named_test_turns_red_by_a_wrong_value(name, unmutated, tmp_path):
    test = MUTATIONS[name]["test"]
    healthy, output = unmutated
    assert healthy.get(test) == {"outcome": "passed", "exceptions": []}, output
    mutated, output = run([test], tmp_path / "report.json", name)
    assert mutated == {test: {"outcome": "failed", "exceptions": ["AssertionError"]}}, output
