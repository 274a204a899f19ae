"""The README files and CONTRIBUTING.md are true: links resolve, tables show the results, commands exist."""

import re

import pytest

from utils import report, sources
from utils.paths import ROOT

FRONT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
READMES = sorted(ROOT.glob("notebooks/*/README.md"))
SECTIONS = {"Checkpoints", "Licences", "What it takes", "Devices", "Results"}


def test_generated_tables_are_up_to_date():
    assert report.regenerate(write=False) == []


@pytest.mark.parametrize("page", FRONT + READMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.parent.name)
def test_the_readme_of_a_notebook_has_the_sections_of_all(page):
    headings = set(re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert headings >= SECTIONS


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.parent.name)
def test_the_table_of_devices_says_what_was_tried(page):
    section = page.read_text(encoding="utf-8").partition("\n## Devices\n")[2].partition("\n## ")[0]
    assert section.lstrip().startswith("<!-- results:devices -->"), "python -m utils.report fills the table"


def test_every_notebook_is_in_the_catalogue_with_its_numbers():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for notebook in ROOT.glob("notebooks/*/*.ipynb"):
        assert f"(notebooks/{notebook.parent.name}/{notebook.name})" in text
        assert (ROOT / "results" / f"{notebook.stem}.json").is_file()


@pytest.mark.parametrize("page", FRONT, ids=lambda page: page.name)
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named and named <= targets


@pytest.mark.parametrize("page", FRONT, ids=lambda page: page.name)
def test_plain_commands_name_modules_that_exist(page):
    for module in re.findall(r"-m ((?:utils|notebooks)[\w.]+)", page.read_text(encoding="utf-8")):
        assert sources.file_of(module), module
