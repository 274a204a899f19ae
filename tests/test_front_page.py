"""What belongs to the front page is valid: citation, development container, Binder, the address to clone."""

import json
import os
import re
import subprocess
import tomllib

import pytest
import yaml

from utils import sources
from utils.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
PYTHONS = ["3.11", "3.12", "3.13"]
CFF_KEYS = {  # of the Citation File Format 1.2.0
    *("abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords"),
    *("license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact"),
    *("repository-code", "title", "type", "url", "version"),
}


def test_the_clone_line_has_the_address_of_the_project():
    address = PROJECT.get("urls", {}).get("Repository")
    assert f"git clone {address}" in README if address else "Clone this repository" in README


def test_the_front_page_answers_eight_questions():
    text = README.partition("\n## Troubleshooting\n")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\*\*[A-Z][^*]+[.?]\*\* ", text, re.MULTILINE)) == 8


def test_the_citation_is_valid():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert set(citation) <= CFF_KEYS and {"authors", "message", "title"} <= set(citation)
    assert all(set(author) == {"name"} and author["name"].strip() for author in citation["authors"])
    assert citation["version"] == PROJECT["version"] and citation["license"] == PROJECT["license"]
    assert README.startswith(f"# {citation['title']}\n")
    assert all(isinstance(citation[key], str) and citation[key].strip() for key in ("abstract", "message", "title"))
    assert len(set(citation["keywords"])) == len(citation["keywords"])


def test_the_development_container_prepares_the_environment():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    python = re.search(r"/python:(?:[\d-]*)?(3\.\d+)-", container["image"])[1]
    assert python in PYTHONS
    command, target = container["postCreateCommand"].split()
    assert command == "make" and target in TARGETS
    assert set(map(str, container["forwardPorts"])) == set(container["portsAttributes"])
    settings = container["customizations"]["vscode"]["settings"]
    assert settings["python.defaultInterpreterPath"].endswith("/.venv/bin/python")


def test_binder_prepares_the_environment():
    folder = ROOT / "binder"
    assert (folder / "runtime.txt").read_text(encoding="utf-8").strip() in [f"python-{python}" for python in PYTHONS]
    assert (folder / "apt.txt").read_text(encoding="utf-8").split() == ["make"]
    script = (folder / "postBuild").read_text(encoding="utf-8")
    modules = re.findall(r"-m ([a-z_.]+)", script)
    assert modules[0] == "utils.setup.env" and sources.file_of(modules[0]) and modules[1] == "ipykernel"


@pytest.mark.skipif(os.name != "posix", reason="the script runs in the shell of Linux")
def test_binder_can_start_its_script():
    script = ROOT / "binder" / "postBuild"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script]).returncode == 0
