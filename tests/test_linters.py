"""The workflows and the Dockerfile pass the linters of their formats."""

import subprocess

import pytest

from tests import checks
from utils.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_the_workflows_are_valid():
    assert checks.workflow_errors(*WORKFLOWS) == []


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("needs: build", "needs: bulid", 'needs job "bulid"'),
        ("runs-on: ubuntu-latest", "runs-on: ubuntu-newest", 'label "ubuntu-newest" is unknown'),
        ("github.event_name == 'push'", "github.event_nam == 'push'", 'property "event_nam" is not defined'),
    ],
)
def test_a_wrong_workflow_is_found(tmp_path, right, wrong, message):
    text = (ROOT / ".github/workflows/site.yml").read_text(encoding="utf-8")
    assert right in text
    (tmp_path / "site.yml").write_text(text.replace(right, wrong), encoding="utf-8")
    assert message in "\n".join(checks.workflow_errors(tmp_path / "site.yml"))


@pytest.mark.parametrize(
    ("line", "rule"), [("", ""), ("RUN sudo true\n", "DL3004"), ("FROM python:latest\n", "DL3007")]
)
def test_the_dockerfile_is_clean(tmp_path, line, rule):
    linter = checks.program("hadolint")
    file = tmp_path / "Dockerfile"
    file.write_text((ROOT / "Dockerfile").read_text(encoding="utf-8") + line, encoding="utf-8")
    done = subprocess.run([linter, "--no-color", file], capture_output=True, text=True, encoding="utf-8")
    assert rule in done.stdout and bool(done.returncode) == bool(rule), done.stdout
