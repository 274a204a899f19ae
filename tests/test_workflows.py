"""The workflows and .ci/run name only commands that exist, and the Makefile does what its list says."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from utils.setup import env

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE).group(1).split())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CI = (ROOT / ".ci/run").read_text(encoding="utf-8")


def load(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github/workflows" / f"{name}.yml").read_text(encoding="utf-8"))


def commands() -> dict[str, str]:
    """What each workflow, .ci/run and the Makefile run, as text."""
    found = {"ci/run": CI, "Makefile": MAKEFILE}
    for file in WORKFLOWS:
        jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
        found[file.name] = "\n".join(x.get("run", "") for job in jobs.values() for x in job["steps"])
    return found


def make(*arguments: str) -> subprocess.CompletedProcess:
    """Run make as from a shell, though `make test` may be what runs the tests."""
    if shutil.which("make") is None:
        pytest.skip("no make here: the README has the plain commands")
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS", "CASE", "TITLE", "PYTHON", "LAB_ARGS", "SYSTEM")
    kept = {x: y for x, y in os.environ.items() if x not in outer}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=kept, capture_output=True, text=True, timeout=60, encoding="utf-8"
    )


def test_there_are_four_workflows() -> None:
    assert [x.name for x in WORKFLOWS] == ["ci.yml", "nightly.yml", "site.yml", "weekly.yml"]
    for file in WORKFLOWS:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert content["permissions"] == {"contents": "read"}
        assert all(job["timeout-minutes"] for job in content["jobs"].values())


def test_ci_covers_systems_and_pythons() -> None:
    content = load("ci")
    assert set(content[True]) == {"push", "pull_request"}  # YAML reads the key `on` as true
    assert content["jobs"]["test"]["strategy"]["matrix"] == {
        "os": ["ubuntu-latest", "ubuntu-24.04-arm", "windows-latest", "macos-latest"],
        "python": ["3.11", "3.12", "3.13"],
    }


def test_the_site_is_built_on_every_push_and_published_from_main() -> None:
    content = load("site")
    assert set(content[True]) == {"push", "pull_request"} and content[True]["push"] == {"branches": ["main"]}
    build, publish = content["jobs"]["build"], content["jobs"]["publish"]
    assert {"run": "make site PYTHON=python"} in build["steps"]
    upload = build["steps"][-1]
    assert upload["with"] == {"path": "dist/site"} and upload["if"] == publish["if"] == "github.event_name == 'push'"
    assert publish["needs"] == "build" and publish["permissions"] == {"pages": "write", "id-token": "write"}


def test_weekly_takes_the_latest_and_all_mutations() -> None:
    assert "utils.setup.env --latest" in commands()["weekly.yml"]
    assert load("weekly")[True]["schedule"] == [{"cron": "17 4 * * 1"}]
    assert load("weekly")["jobs"]["mutations"]["steps"][-1]["run"] == "make mutations PYTHON=python"
    assert [x["run"] for x in load("weekly")["jobs"]["platforms"]["steps"] if "run" in x] == [
        "make wheels PYTHON=python",
        "make matrix PYTHON=python",
        "LC_ALL=C PYTHONUTF8=0 .venv/bin/python -m utils.setup.offline .venv/bin/python -m pytest tests/utils",
    ]


@pytest.mark.skipif(os.name == "nt", reason="the job runs in the shell of Linux")
def test_nightly_runs_every_notebook_with_the_released_checkpoint(tmp_path) -> None:
    jobs = load("nightly")["jobs"]
    released = jobs["released"]
    assert released["env"] == {"MODEL": "released"}
    assert released["needs"] == "cases"
    assert released["strategy"]["matrix"] == {"case": "${{ fromJson(needs.cases.outputs.cases) }}"}
    assert jobs["cases"]["outputs"] == {"cases": "${{ steps.list.outputs.cases }}"}
    step = next(x for x in jobs["cases"]["steps"] if x.get("id") == "list")
    settings = os.environ | {"GITHUB_OUTPUT": str(tmp_path / "output")}
    subprocess.run(["bash", "-e", "-c", step["run"]], cwd=ROOT, env=settings, check=True)
    name, _, cases = (tmp_path / "output").read_text(encoding="utf-8").partition("=")
    assert name == "cases"
    notebooks = {x.parent.name for x in ROOT.glob("notebooks/*/*.ipynb")}
    assert set(json.loads(cases)) == notebooks - {"sambert_hifigan"}  # whose voices are on ModelScope


def test_commands_exist() -> None:
    assert TARGETS == set(
        "help env lab test mutations run demo bench arm train new site bundle lock matrix wheels".split()
    )
    modules, targets = set(), set()
    for text in commands().values():
        modules |= set(re.findall(r"python(?:\.exe)?\)? -m ([a-z_.]+)|PYTHON\)? -m ([a-z_.]+)", text))
        targets |= set(re.findall(r"^(?:.*\s)?make (?:-C \S+ )?([a-z]+)\b", text, re.MULTILINE))
    names = {name for pair in modules for name in pair if name and not name.startswith("notebooks.")}
    assert {
        "utils.setup.env",
        "utils.setup.offline",
        "utils.run",
        "utils.demo",
        "utils.setup.bundle",
        "utils.website",
        "pytest",
    } <= names
    assert [x for x in sorted(names) if importlib.util.find_spec(x) is None] == []
    assert targets >= {"test", "mutations", "env", "run"}
    assert targets - TARGETS <= {"alone", "test"}


def test_ci_run_is_the_readme_command() -> None:
    assert re.search(r"^make test\b", CI, re.MULTILINE)
    assert re.search(r"^make mutations CASE=changed\b", CI, re.MULTILINE)
    if os.name == "posix":
        assert os.access(ROOT / ".ci/run", os.X_OK)
        assert subprocess.run(["bash", "-n", ROOT / ".ci/run"]).returncode == 0


def test_make_alone_lists_its_targets() -> None:
    listed = re.findall(r"^make (\w+)", make().stdout, re.MULTILINE)
    assert sorted(listed) == sorted(TARGETS - {"help"})


@pytest.mark.parametrize("target", sorted(TARGETS - {"help"}))
def test_every_target_prepares_first(target) -> None:
    done = make("-n", target, "CASE=graph_customization", "PYTHON=any-python")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "any-python -m utils.setup.env"


def test_targets_run_the_modules() -> None:
    python = env.VENV_PYTHON.relative_to(ROOT).as_posix()
    assert f"{python} -m utils.setup.offline {python} -m pytest" in make("-n", "test").stdout
    assert f"{python} -m utils.run one --json x" in make("-n", "run", "CASE=one", "ARGS=--json x").stdout
    assert f"{python} -m utils.website --output x" in make("-n", "site", "ARGS=--output x").stdout
    assert f"{python} -m utils.demo one" in make("-n", "demo", "CASE=one").stdout
    assert f"{python} -m utils.setup.bundle --system windows" in make("-n", "bundle", "SYSTEM=windows").stdout
    assert f"{python} -m jupyter lab --ServerApp.ip=127.0.0.1" in make("-n", "lab").stdout
    assert "token" not in make("-n", "lab").stdout
    assert "tests/mutations --mutations=all" in make("-n", "mutations").stdout
    assert "tests/mutations --mutations=one" in make("-n", "mutations", "CASE=one").stdout
    assert f'{python} -m utils.new "$CASE" "$TITLE"' in make("-n", "new", "CASE=one", "TITLE=One").stdout


@pytest.mark.parametrize("target", ["run", "demo", "train"])
def test_a_case_is_asked_for(target) -> None:
    done = make(target, "PYTHON=true")  # `true -m utils.setup.env` does nothing
    assert done.returncode == 2
    assert "Which case? Add CASE=name; there is: " in done.stdout


def test_bench_without_anything_to_measure_says_so() -> None:
    done = make("bench", "CASE=no_such_case", "PYTHON=true")
    assert done.returncode == 2
    assert "There is no notebooks/no_such_case/measuring: nothing to measure." in done.stdout
