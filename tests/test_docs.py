"""The README and the cards say what is true: links resolve, tables are what results say, commands exist."""

import re
from pathlib import Path

import pytest

from utils import report, sources

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("notebooks/*/README.md"))]
CARD_SECTIONS = {"Checkpoints", "Licences", "What it takes", "Devices", "Results"}


def test_generated_tables_are_up_to_date():
    assert report.regenerate(write=False) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.parent.name)
def test_a_card_says_what_every_card_says(page):
    headings = set(re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert headings >= CARD_SECTIONS


def test_every_notebook_is_in_the_catalogue_with_its_numbers():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for notebook in ROOT.glob("notebooks/*/*.ipynb"):
        assert f"(notebooks/{notebook.parent.name}/{notebook.name})" in text
        assert (ROOT / "results" / f"{notebook.stem}.json").is_file()


def test_make_targets_in_the_readme_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert named and named <= targets


def test_plain_commands_in_the_readme_name_modules_that_exist():
    for module in re.findall(r"-m ((?:utils|notebooks)[\w.]+)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert sources.file_of(module), module
