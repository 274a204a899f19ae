"""Each mutation of the toml files turns the test that it names red, by a wrong value and not by an exception.

[[mutation]]
name = "what is wrong now"
file = "notebooks/<case>/<module>.py"
old = "source text, occurring once"
new = "what stands there instead"
test = "tests/<case>/test_<module>.py::test_<name>"
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.mutations import runner

ROOT = Path(__file__).parents[2]
MUTATIONS = {(group, name): one for group, known in runner.mutations().items() for name, one in known.items()}
every_mutation = pytest.mark.parametrize(("group", "name"), MUTATIONS)


@functools.cache
def outcomes(group: str) -> tuple[dict[str, dict], str]:
    """What the runner reports of a group, and its output. It does without plugins that it does not need."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        command = [sys.executable, "-m", "tests.mutations.runner", group, str(report)]
        settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=ROOT, env=kept | settings, capture_output=True, text=True, encoding="utf-8")
        output = done.stdout + done.stderr
        return (json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}), output


@every_mutation
def test_the_source_to_mutate_occurs_once(group, name):
    one = MUTATIONS[group, name]
    source = (ROOT / one["file"]).read_text(encoding="utf-8")
    assert source.count(one["old"]) == 1 and one["new"] != one["old"]


@every_mutation
def test_the_named_test_turns_red_by_a_wrong_value(group, name):
    test = MUTATIONS[group, name]["test"]
    found, output = outcomes(group)
    assert found.get("", {}).get(test) == {"outcome": "passed", "exceptions": []}, output
    its_own = output.partition(f"--- {name}\n")[2].partition("\n--- ")[0]
    assert found[name] == {test: {"outcome": "failed", "exceptions": ["AssertionError"]}}, its_own
