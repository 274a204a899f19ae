"""Each mutation of the toml files turns the test that it names red, by a wrong value and not by an exception.

`make mutations [CASE=name]` runs them; `make test` only sees that their sources are there.

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
from time import perf_counter

import pytest

from tests.mutations import runner

ROOT = runner.ROOT
MUTATIONS = {(group, name): one for group, known in runner.mutations().items() for name, one in known.items()}
every_mutation = pytest.mark.parametrize(
    ("group", "name"),
    [pytest.param(group, name, marks=pytest.mark.xdist_group(group)) for group, name in MUTATIONS],
)
begin = functools.cache(perf_counter)


def without_pytest() -> dict[str, str]:
    """The environment for a pytest of its own: without the settings of this one, and without plugins it can spare."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@functools.cache
def outcomes(group: str, limit: float) -> tuple[dict[str, dict], str]:
    """What the runner reports of a group, and its output.

    limit: seconds from the first call on, after which no mutation begins; a group that would begin later reports
    nothing.
    """
    left = begin() + limit - perf_counter()
    if left < 0:
        return {}, ""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        command = [sys.executable, "-m", "tests.mutations.runner", group, str(report), str(left)]
        done = subprocess.run(command, cwd=ROOT, env=without_pytest(), capture_output=True, text=True, encoding="utf-8")
        output = done.stdout + done.stderr
        return (json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}), output


@every_mutation
def test_the_source_to_mutate_occurs_once(group, name):
    one = MUTATIONS[group, name]
    source = (ROOT / one["file"]).read_text(encoding="utf-8")
    assert source.count(one["old"]) == 1 and one["new"] != one["old"]


def test_the_named_tests_are_there(request):
    """With its parameters in brackets, where it has any: pytest would run them all, and none by that name."""
    missing = {one["test"] for one in MUTATIONS.values()} - {item.nodeid for item in request.session.items}
    if missing:  # this run has collected some of the tests only
        command = [sys.executable, "-m", "pytest", *runner.OPTIONS, "--collect-only", *sorted(missing)]
        done = subprocess.run(command, cwd=ROOT, env=without_pytest(), capture_output=True, text=True, encoding="utf-8")
        missing -= set(done.stdout.splitlines())
        assert not missing, done.stderr


@pytest.mark.mutation
@every_mutation
def test_the_named_test_turns_red_by_a_wrong_value(group, name, request):
    test = MUTATIONS[group, name]["test"]
    limit = request.config.getoption("seconds")
    found, output = outcomes(group, limit)
    if output:
        assert found.get("", {}).get(test) == {"outcome": "passed", "exceptions": []}, output
    if f"--- {name}\n" not in output and perf_counter() - begin() > limit:
        pytest.skip(f"not run, for {limit:.0f} s were over: `make mutations CASE={group}` runs it")
    its_own = output.partition(f"--- {name}\n")[2].partition("\n--- ")[0]
    assert found[name] == {test: {"outcome": "failed", "exceptions": ["AssertionError"]}}, its_own
